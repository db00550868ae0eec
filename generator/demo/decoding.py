"""The shipped model's decoding, on the library path and with the kernels that were just admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.store import KernelStore
from runtime.cli.models import open_engine
from runtime.engine.choosing import BucketChoice
from runtime.engine.engine import Engine, Result
from runtime.engine.library_ops import Library
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import as_table, select
from runtime.engine.workload import Measured, Workload, engine_arm, measure

PROMPT = "The for statement is used to iterate over "
OUTPUT_TOKENS = 96
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Spoken(Workload):
    """One prompt of given tokens instead of random ones."""

    token_ids: tuple[int, ...] = ()

    def prompts(self) -> list[list[int]]:
        """The prompt."""
        return [list(self.token_ids)]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two paths first chose differently, and how far apart the library path finds the two choices.

    ``gap``: difference of their log-probabilities there; None where one of them is not among its likeliest eight.
    """

    position: int
    gap: float | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """Both paths' measurements and texts, where they part, and what was tried at the sites of the step."""

    choices: tuple[BucketChoice, ...]
    measured: dict[str, Measured]
    texts: dict[str, str]
    parting: Parting | None


def open_tiny(model_dir: Path) -> Engine:
    """An engine of one request for the shipped model. Raises kb.cli.failure.Failure."""
    return open_engine(model_dir, device="cpu", dtype="auto", max_batch=1, buckets=(1,), prefix_cache=False)


def decode(
    model_dir: Path,
    library: Path,
    store: KernelStore,
    cache: Path,
    *,
    tokens: int = OUTPUT_TOKENS,
    rounds: int = ROUNDS,
) -> Decoded:
    """Choose kernels of ``store`` by measurement, then decode ``PROMPT`` on both paths in turn.

    Raises Failure and RuntimeFailure.
    """
    with open_tiny(model_dir) as plain, open_tiny(model_dir) as chosen:
        assert plain.tokenizer is not None  # the checkpoint has one
        prompt = plain.tokenizer.encode(PROMPT)
        choices = select(chosen.executor, library, store=store, context=len(prompt) + tokens // 2, cache=cache)
        work = Spoken(len(prompt), tokens, 1, plain.spec.vocab_size, token_ids=tuple(prompt))
        arms = {"library path": engine_arm(plain, work), "chosen kernels": engine_arm(chosen, work)}
        measured = measure(arms, rounds)
        texts = {name: plain.tokenizer.decode(m.tokens[0]) for name, m in measured.items()}
        parting = parting_of(plain, prompt, *(m.tokens[0] for m in measured.values()))
    return Decoded(tuple(choices), measured, texts, parting)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position at which two equally long outputs differ."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def parting_of(library: Engine, prompt: Sequence[int], left: Sequence[int], right: Sequence[int]) -> Parting | None:
    """Where two outputs for ``prompt`` part, seen from the library path; None when they are the same."""
    position = first_difference(left, right)
    if position is None:
        return None
    results: list[Result] = []
    library.add_request(
        [*prompt, *left[:position]],
        SamplingParams(max_tokens=1, ignore_eos=True, logprobs=8),
        on_output=lambda output: results.append(library.result(output.request_id)),
    )
    for _ in library.run():
        pass
    known = dict(results[0].logprobs[0].top)
    pair = (left[position], right[position])
    gap = abs(known[pair[0]] - known[pair[1]]) if known.keys() >= set(pair) else None
    return Parting(position, gap)


def speed_rows(measured: dict[str, Measured]) -> list[tuple[str, str, str, str]]:
    """Path, milliseconds a token, tokens a second, and how many times faster than the first path."""
    base = next(iter(measured.values())).ms_per_token
    return [
        (name, f"{m.ms_per_token:.3f}", f"{m.tokens_per_s:.0f}", f"{base / m.ms_per_token:.2f}x")
        for name, m in measured.items()
    ]


def kernel_rows(choices: Sequence[BucketChoice]) -> list[dict[str, Any]]:
    """What selection says of the store's kernels: one row a trial; ``gain`` is over the step with the library's."""
    rows = as_table(choices)
    library = {_place(row): row["step_us"] for row in rows if row["candidate"] == Library.name}
    return [
        row | {"gain": _gain(library.get(_place(row)), row["step_us"])} for row in rows if row["digest"] is not None
    ]


def _place(row: dict[str, Any]) -> tuple[int, str, str]:
    return row["bucket"], row["operation"], str(row["dims"])


def _gain(library_us: float | None, step_us: float | None) -> float | None:
    return library_us / step_us if library_us and step_us else None
