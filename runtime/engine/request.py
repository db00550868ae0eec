"""A request: what was asked for, how far it has come, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class RequestError(ValueError):
    """A request that cannot be served as asked: what is wrong and what to change."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Raises RequestError on values that make no sense.

    ``max_tokens``: None means until the context is full. ``temperature``: 0 takes the most probable token.
    ``top_k``: 0 for all. ``top_p`` and ``min_p`` act on what top_k leaves. ``repetition_penalty`` divides (or, where
    negative, multiplies) the logits of tokens in prompt and output; the presence and frequency penalties are
    subtracted for tokens of the output, once and per occurrence. ``seed``: with one, a request's tokens do not depend
    on what else is in the batch. ``stop``: strings that end the text and are not part of it. ``stop_token_ids``: ids
    that end it, besides the model's own, which ``ignore_eos`` switches off. ``logprobs``: None for none, else how
    many of the most probable tokens to report besides the chosen one.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        checks = (
            (self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "1 or more"),
            (0 <= self.temperature < float("inf"), "temperature", "0 or more"),
            (self.top_k >= 0, "top_k", "0 or more"),
            (0 < self.top_p <= 1, "top_p", "above 0 and at most 1"),
            (0 <= self.min_p < 1, "min_p", "0 or more and below 1"),
            (0 < self.repetition_penalty < float("inf"), "repetition_penalty", "above 0"),
            (abs(self.presence_penalty) <= 100, "presence_penalty", "between -100 and 100"),
            (abs(self.frequency_penalty) <= 100, "frequency_penalty", "between -100 and 100"),
            (self.seed is None or 0 <= self.seed < 2**63, "seed", "0 or more and below 2**63"),
            (all(self.stop), "stop", "strings that are not empty"),
            (self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"0 to {MAX_LOGPROBS}"),
        )
        for holds, name, allowed in checks:
            if not holds:
                raise RequestError(f"{name} is {getattr(self, name)!r}; {allowed} is possible")

    @property
    def greedy(self) -> bool:
        """True where the token is the argmax of the raw logits and nothing else is asked."""
        return self.temperature == 0 and not self.penalised and self.logprobs is None

    @property
    def penalised(self) -> bool:
        """True where earlier tokens change the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


MAX_LOGPROBS = 20


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-sequence id, a stop id or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # cancelled


class Status(StrEnum):
    """Where a request is."""

    WAITING = "waiting"  # holds no memory
    RUNNING = "running"  # holds a slot and device blocks
    SWAPPED = "swapped"  # holds host blocks
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position, before temperature and penalties."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # most probable first


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to a request."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def finished(self) -> bool:
        """True for a request's last output."""
        return self.finish_reason is not None


@dataclass(slots=True, eq=False)
class Request:
    """A request and its state. The engine writes ``tokens``, the text and the finish; the scheduler all the rest.

    ``tokens`` holds the prompt and every token produced since, whatever preemption does to the memory.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    max_total: int  # prompt and output together, never more
    seed: int
    arrival: int  # order of submission; lower is served first
    on_output: Callable[[Output], None] | None = None

    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    num_computed: int = 0  # positions whose keys and values are written or about to be
    pending: int = 0  # tokens a step in flight will add
    token_on_device: bool = False  # the newest token is in the device's table, at `slot`
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)  # content ids of the leading registered blocks
    host_blocks: list[int] = field(default_factory=list)
    admissions: int = 0  # times it was given a slot; with `arrival`, names one life of a block table
    num_preemptions: int = 0
    num_cached: int = 0  # prompt tokens found in the prefix cache at the first admission
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Tokens there are, the one in flight included."""
        return len(self.tokens) + self.pending

    @property
    def output_tokens(self) -> Sequence[int]:
        """Tokens produced so far."""
        return self.tokens[self.num_prompt :]

    @property
    def wants_more(self) -> bool:
        """False when the token in flight is known to be the last."""
        return self.total < self.max_total

    @property
    def finished(self) -> bool:
        """True once a finish reason is set."""
        return self.status is Status.FINISHED
