"""The engine: requests in, tokens out.

``step`` is one turn of the loop: plan, run, hand out. With ``lookahead`` the next step is planned and started before
the tokens of the last are read, so the device never waits for the host; a request that turns out to have ended costs
one row of the step after, whose token is dropped.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from runtime.engine.config import ConfigError, EngineConfig, plan_memory
from runtime.engine.executor import Executor, InFlight
from runtime.engine.library_ops import Library
from runtime.engine.request import (
    FinishReason,
    Output,
    Request,
    RequestError,
    SamplingParams,
    TokenLogprobs,
)
from runtime.engine.scheduler import Limits, Scheduler
from runtime.engine.text import TextStream
from runtime.engine.tokenizer import CheckpointTokenizer, Tokenizer
from runtime.kv.blocks import BlockAllocator, HostBlocks
from runtime.kv.pool import KVPool
from runtime.kv.swap import SwapSpace
from runtime.models.decoder import Decoder
from runtime.models.spec import DecoderSpec, read_spec
from runtime.models.step import Sizes
from runtime.models.weights import DecoderWeights, load_weights
from runtime.sites import Selection

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...]
    num_cached_tokens: int
    num_preemptions: int


class Engine:
    """Runs one model. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        selection: Selection | None = None,
    ) -> None:
        """Take over ``weights`` and allocate the KV cache and the step's buffers on their device.

        Without ``tokenizer``, prompts are token ids and outputs have no text. Raises ConfigError when the settings
        contradict each other or the device is too small.
        """
        self.spec, self.config, self.tokenizer = spec, config or EngineConfig(), tokenizer
        memory = plan_memory(self.config, spec, weights)
        pool = KVPool(spec, memory.num_blocks, memory.block_size, weights.embed.dtype, weights.embed.device)
        self.max_model_len, self._lookahead = memory.max_model_len, memory.lookahead
        self.decoder = Decoder(spec, weights, pool, self.max_model_len)
        sizes = Sizes(memory.max_step_tokens, memory.max_batch, memory.blocks_per_sequence)
        self.selection = selection or Selection(Library())
        swap = SwapSpace(pool, memory.swap_blocks)
        self.executor = Executor(
            self.decoder,
            self.selection,
            swap,
            sizes,
            memory.buckets,
            graphs=self.config.graphs,
            fast_prompts=self.config.fast_prompts,
        )
        limits = Limits(
            max_batch=memory.max_batch,
            max_step_tokens=memory.max_step_tokens,
            watermark_blocks=memory.watermark_blocks,
            prefix_cache=self.config.prefix_cache,
            preemption=self.config.preemption,
        )
        allocator = BlockAllocator(memory.num_blocks, memory.block_size)
        pool.before_overwriting = allocator.give_up
        self.scheduler = Scheduler(allocator, HostBlocks(memory.swap_blocks), limits)
        self._in_flight: deque[InFlight] = deque()
        self._requests: dict[str, Request] = {}
        self._text: dict[str, TextStream] = {}
        self._arrivals = 0
        self._random = random.Random(self.config.seed)  # noqa: S311 - seeds of sampling, not secrets

    @classmethod
    def from_pretrained(
        cls,
        model_dir: str | Path,
        config: EngineConfig | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        tokenizer: Tokenizer | None = None,
        selection: Selection | None = None,
    ) -> Engine:
        """Load the Hugging Face checkpoint in ``model_dir``.

        ``device``: ``cpu``, ``cuda``, ``cuda:1``, or ``auto`` for a GPU where there is one. ``dtype``: a torch
        dtype's name, or ``auto`` for the checkpoint's own. Raises ModelError before anything is allocated when the
        checkpoint cannot be run.
        """
        folder = Path(model_dir)
        spec = read_spec(folder)
        where = resolve_device(device)
        weights = load_weights(folder, spec, where, resolve_dtype(dtype, spec))
        return cls(spec, weights, config, tokenizer=tokenizer or CheckpointTokenizer(folder), selection=selection)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Requests.

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        on_output: Callable[[Output], None] | None = None,
    ) -> str:
        """Queue a prompt (text or token ids); its id. ``on_output`` is called for every output of ``step``.

        Raises RequestError when the request could never run, naming what to change.
        """
        params = params or SamplingParams()
        name = request_id if request_id is not None else f"request-{self._arrivals}"
        if name in self._requests:
            raise RequestError(f"request id '{name}' is in use; finished requests free theirs")
        tokens = self._tokens(prompt)
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; give stop_token_ids")
        room = self.max_model_len - len(tokens)
        if room < 1:
            raise RequestError(
                f"request {name}: a prompt of {len(tokens)} tokens leaves no room in a context of "
                f"{self.max_model_len}; shorten it"
            )
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        seed = self._random.getrandbits(63) if params.seed is None else params.seed
        request = Request(name, tokens, len(tokens), params, len(tokens) + limit, seed, self._arrivals, on_output)
        self.scheduler.submit(request)
        self._arrivals += 1
        self._requests[name] = request
        self._text[name] = TextStream(self.tokenizer, tokens, params.stop)
        return name

    def abort(self, request_id: str) -> None:
        """Cancel a request; its last output, with reason ``abort``, goes to its callback.

        Ids that are unknown or have ended are ignored.
        """
        request = self._requests.get(request_id)
        if request is not None and not request.finished:
            self.scheduler.finish(request, FinishReason.ABORT)
            self._hand_out(request, Output(request_id, (), "", FinishReason.ABORT))

    @property
    def has_work(self) -> bool:
        """True while a request is unfinished or a step is in flight."""
        return bool(self._requests or self._in_flight)

    # The loop.

    def step(self) -> list[Output]:
        """One turn of the loop; what it added to requests, nothing while a first step is in flight.

        An exception of a callback cancels its request and is raised when everyone else has got theirs.
        """
        plan = self.scheduler.schedule()
        if plan:
            self._in_flight.append(self.executor.launch(plan))
            if len(self._in_flight) <= self._lookahead:
                return []
        return self._collect(self._in_flight.popleft()) if self._in_flight else []

    def run(self) -> Iterator[Output]:
        """Step until nothing is left to do."""
        while self.has_work:
            yield from self.step()

    def generate(self, prompts: Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[Result]:
        """Results of ``prompts``, in order. Other requests in the engine go on meanwhile."""
        results: dict[str, Result] = {}
        prompts = list(prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts and {len(each)} sets of parameters")

        def keep(output: Output) -> None:
            if output.finished:
                results[output.request_id] = self.result(output.request_id)

        names: list[str] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                names.append(self.add_request(prompt, one, on_output=keep))
            while len(results) < len(names):
                self.step()
        except BaseException:
            for name in names:
                self.abort(name)
            raise
        return [results[name] for name in names]

    def result(self, request_id: str) -> Result:
        """What a request has produced; to be asked for in its callback at the latest. Raises KeyError."""
        request, text = self._requests[request_id], self._text[request_id]
        return Result(
            request_id=request_id,
            prompt_token_ids=tuple(request.tokens[: request.num_prompt]),
            token_ids=tuple(request.output_tokens),
            text=text.text,
            finish_reason=request.finish_reason or FinishReason.ABORT,
            logprobs=tuple(request.logprobs),
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
        )

    def close(self) -> None:
        """Cancel all requests and wait for the device. The engine cannot be used afterwards."""
        for name in list(self._requests):
            with suppress(Exception):  # a callback's: it has nothing left to decide
                self.abort(name)
        while self._in_flight:
            self._in_flight.popleft().wait()
        self.executor.forget_programs()

    # What a step brought.

    def _collect(self, flight: InFlight) -> list[Output]:
        tokens, logprobs = flight.wait()
        emitting = zip(flight.plan.emitting, tokens, logprobs, strict=True)
        wanted = [(c.request, token, lp) for c, token, lp in emitting if self.scheduler.accept(c, token)]
        self.scheduler.commit(flight.plan)
        advanced = [(request, self._advance(request, token, lp)) for request, token, lp in wanted]
        outputs: list[Output] = []
        failures: list[Exception] = []
        for request, output in advanced:
            if request.finished and not output.finished:
                continue  # cancelled by the callback of a request before it
            outputs.append(output)
            try:
                self._hand_out(request, output)
            except Exception as error:  # one caller's mistake must not cost the others their tokens
                failures.append(error)
        if failures:
            raise failures[0]
        return outputs

    def _advance(self, request: Request, token: int, logprob: TokenLogprobs | None) -> Output:
        """Note ``token`` and find out whether it was the last."""
        params = request.params
        ends = token in params.stop_token_ids or (token in self.spec.eos_token_ids and not params.ignore_eos)
        full = len(request.tokens) >= request.max_total
        text, met = self._text[request.id].add(token, hidden=ends, last=ends or full)
        if ends or met or full:
            self.scheduler.finish(request, FinishReason.STOP if ends or met else FinishReason.LENGTH)
        logprobs = () if logprob is None else (logprob,)
        request.logprobs.extend(logprobs)
        return Output(request.id, (token,), text, request.finish_reason, logprobs)

    def _hand_out(self, request: Request, output: Output) -> None:
        """Give ``output`` to the request's callback; one that raises loses its request."""
        try:
            if request.on_output is not None:
                request.on_output(output)
        except BaseException:
            self.scheduler.finish(request, FinishReason.ABORT)
            raise
        finally:
            if request.finished:
                self._requests.pop(request.id, None)
                self._text.pop(request.id, None)

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("a text prompt needs a tokenizer; give token ids")
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = [int(token) for token in prompt]
        if not tokens:
            raise RequestError("an empty prompt; at least one token is needed")
        outside = [t for t in tokens if not 0 <= t < self.spec.vocab_size]
        if outside:
            raise RequestError(f"token id {outside[0]} is outside the vocabulary of {self.spec.vocab_size}")
        return tokens


def resolve_device(name: str) -> torch.device:
    """The device ``name`` stands for; ``auto`` is a GPU where there is one. Raises ConfigError when it is not there."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if found else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device '{name}' is not supported; auto, cpu, cuda and cuda:N are")
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ConfigError(f"device '{name}' is not there; torch sees {found} GPUs")
    return device


def resolve_dtype(name: str, spec: DecoderSpec) -> torch.dtype:
    """The torch dtype ``name`` stands for; ``auto`` is the checkpoint's. Raises ConfigError for another name."""
    chosen = spec.dtype.value if name == "auto" else name
    if chosen not in ("bfloat16", "float16", "float32"):
        raise ConfigError(f"dtype '{name}' is not supported; auto, bfloat16, float16 and float32 are")
    dtype = getattr(torch, chosen)
    assert isinstance(dtype, torch.dtype)
    return dtype
