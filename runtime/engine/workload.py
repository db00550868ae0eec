"""A decoding workload and the arms that run it: engines and peers, repeated in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.engine.engine import Engine
from runtime.engine.request import Output, SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """``requests`` random prompts of ``prompt`` tokens that arrive at once and produce ``output`` tokens each."""

    prompt: int
    output: int
    requests: int
    vocab_size: int
    seed: int = 0

    def prompts(self) -> list[list[int]]:
        """The same token ids every time."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.requests, self.prompt)
        rows: list[list[int]] = torch.randint(1, self.vocab_size, shape, generator=generator).tolist()
        return rows


@dataclass(frozen=True, slots=True)
class Measured:
    """``ms_per_token``: between first and last token, for one of the requests. ``tokens_per_s``: output tokens of all
    requests a second, prompts included. ``tokens``: what came out."""

    ms_per_token: float
    tokens_per_s: float
    tokens: tuple[tuple[int, ...], ...]


Once = Callable[[], Measured]


def measure(arms: Mapping[str, Once], rounds: int) -> dict[str, Measured]:
    """Run every arm once to warm it up, then ``rounds`` times in turn; medians."""
    seen: dict[str, list[Measured]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, once in arms.items():
            result = once()
            if number:
                seen[name].append(result)
    return {
        name: Measured(
            statistics.median(m.ms_per_token for m in results),
            statistics.median(m.tokens_per_s for m in results),
            results[-1].tokens,
        )
        for name, results in seen.items()
    }


def engine_arm(engine: Engine, work: Workload) -> Once:
    """Greedy decoding by ``engine``."""
    params = SamplingParams(max_tokens=work.output, ignore_eos=True)

    def once() -> Measured:
        done: dict[str, tuple[int, ...]] = {}
        times: list[float] = []

        def on_output(output: Output) -> None:
            times.append(time.perf_counter())
            if output.finished:
                done[output.request_id] = engine.result(output.request_id).token_ids

        start = time.perf_counter()
        names = [engine.add_request(p, params, on_output=on_output) for p in work.prompts()]
        for _ in engine.run():
            pass
        return _measured(work, start, times[0], times[-1], tuple(done[n] for n in names))

    return once


def peer_arm(name: str, model_dir: Path, engine: Engine, work: Workload) -> Once:
    """Hugging Face on the same checkpoint: ``hf-eager``, or ``hf-compiled`` with a static cache."""
    from transformers import AutoModelForCausalLM

    embed = engine.decoder.weights.embed
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=embed.dtype)
    model.to(embed.device).eval()
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if name == "hf-compiled":
        settings["cache_implementation"] = "static"

    @torch.inference_mode()
    def once() -> Measured:
        ids = torch.tensor(work.prompts(), device=embed.device)
        stamps = _Stamps()
        start = time.perf_counter()
        length = work.output
        out = model.generate(ids, max_new_tokens=length, min_new_tokens=length, streamer=stamps, **settings)
        rows = tuple(tuple(row) for row in out[:, work.prompt :].tolist())
        return _measured(work, start, stamps.times[1], stamps.times[-1], rows)

    return once


class _Stamps:
    """A streamer that notes when tokens arrive; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _measured(work: Workload, start: float, first: float, last: float, tokens: tuple[tuple[int, ...], ...]) -> Measured:
    ms = 1e3 * (last - first) / max(1, work.output - 1)
    return Measured(ms, work.requests * work.output / (last - start), tokens)
