"""One model of the engine benchmark, in a process of its own: speed, selection, graphs against eager, long context."""

from __future__ import annotations

import argparse
import gc
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu.faults import Watched, WatchedCandidates, host_stopwatch
from bench.gpu.model_configs import CONFIGS, DRY_RUN
from bench.gpu.report import Report
from kb.dtype import Target
from kb.library import library_root, load_library
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice, DeviceLostError
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.library_ops import Library
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import CandidateList, as_table, select
from runtime.engine.speed import floor_ms
from runtime.models.spec import spec_from_config
from runtime.models.weights import random_weights
from runtime.sites import Selection

_DRAWN = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 7}
# What the child of a lost device exits with.
LOST = 3


def prompts(count: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, distinct prompts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocab, (count, length), generator=generator).tolist()


def decode(
    engine: Engine, asked: list[list[int]], tokens: int, **sampling: Any
) -> tuple[list[tuple[int, ...]], float, float]:
    """Run ``asked`` to ``tokens`` each; their tokens, seconds from first token to last, and seconds in all."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
    results: dict[str, tuple[int, ...]] = {}
    times: list[float] = []

    def on_output(output: Any) -> None:
        times.append(time.perf_counter())
        if output.finished:
            results[output.request_id] = engine.result(output.request_id).token_ids

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    names = [engine.add_request(p, params, on_output=on_output) for p in asked]
    for _ in engine.run():
        pass
    return [results[n] for n in names], times[-1] - times[0], times[-1] - start


class ModelBench:
    """One model and what is measured of it."""

    def __init__(self, name: str, report: Report, arguments: argparse.Namespace) -> None:
        self.name, self.report, self.arguments = name, report, arguments
        self.device = torch.device(arguments.device)
        self.diagnose: bool = arguments.diagnose
        self.spec = spec_from_config((CONFIGS | DRY_RUN)[name], {})
        self.weights = random_weights(self.spec, self.device, torch.bfloat16)
        self.record: dict[str, Any] = {"weight_bytes": self.weights.nbytes}
        report.record[name] = self.record
        folder = Path(arguments.store)
        store = KernelStore(folder) if folder.is_dir() else None
        kind = WatchedCandidates if self.diagnose else CandidateList
        target = Target.CUDA if self.device.type == "cuda" else Target.CPU
        self.candidates = kind(load_library(library_root()).contracts, store, target, unjudged=arguments.all_kernels)
        self.store = store
        self.chosen = self.selection()

    def selection(self) -> Selection:
        """The library everywhere."""
        return Selection(Watched(Library()) if self.diagnose else Library())

    def engine(self, selection: Selection | None = None, **settings: Any) -> Engine:
        """An engine with room for the workloads here; without graphs where a fault is looked for."""
        defaults = {"max_batch": 1, "max_model_len": 1024, "kv_blocks": None, "prefix_cache": False}
        settings = {**defaults, **settings} | ({"graphs": False} if self.diagnose else {})
        config = EngineConfig(**settings)
        return Engine(self.spec, self.weights, config, selection=selection or self.selection())

    def row(self, what: str, text: str, *, ok: bool = True) -> None:
        """One row of the table."""
        self.report.add(self.name, what, text, ok=ok)

    def select(self, engine: Engine, *buckets: int, context: int = 1024) -> list[BucketChoice]:
        """Choose for ``buckets``; the choices that were measured now, not those an equal engine left on record."""
        cache = Path(self.arguments.selections) / ("all" if self.arguments.all_kernels else "judged")
        watch = {"stopwatch": host_stopwatch(), "cache": cache / "watched"} if self.diagnose else {"cache": cache}
        measured: list[BucketChoice] = []
        select(
            engine.executor,
            library_root(),
            store=self.store,
            buckets=buckets,
            context=context,
            candidates=self.candidates,
            on_bucket=lambda choice, known: None if known else measured.append(choice),
            **watch,
        )
        for site, reason in engine.selection.fallbacks.items():
            self.row("falls back", f"{site}: {reason}", ok=False)
        return measured

    def choose(self, engine: Engine, *buckets: int) -> None:
        """Measured selection, and what it said."""
        start = time.perf_counter()
        choices = self.select(engine, *buckets)
        seconds = time.perf_counter() - start
        for choice in choices:
            self.row(
                f"selection, bucket {choice.bucket}",
                f"{choice.library_us:.0f} -> {choice.step_us:.0f} µs a step, {seconds:.0f} s",
            )
        for row in as_table(choices):
            mark = "*" if row["chosen"] else " "
            step = f"{row['step_us']:.0f} µs" if row["step_us"] else "-"
            self.row(f" {mark} {row['operation']} @{row['bucket']}", f"{row['candidate']}: {step}, {row['why']}")
        self.record.setdefault("selection", []).extend(as_table(choices))

    def single(self, engine: Engine, what: str, prompt: int = 128, output: int = 512) -> float:
        """Milliseconds a token at batch 1."""
        asked = prompts(1, prompt, self.spec.vocab_size)
        decode(engine, asked, 8)
        _, seconds, _ = decode(engine, asked, output)
        took = 1e3 * seconds / (output - 1)
        floor = floor_ms(self.spec, self.weights, 1, prompt + output / 2, self.report.record["read_gbps"])
        self.row(what, f"{took:.3f} ms a token, {floor / took:.1%} of the floor ({floor:.3f} ms)")
        self.record[what] = {"ms_per_token": took, "floor_ms": floor, "prompt": prompt, "output": output}
        return took

    def batch(self, engine: Engine, what: str, count: int, prompt: int = 512, output: int = 256) -> None:
        """Output tokens a second of ``count`` requests that arrive at once, prefill included."""
        asked = prompts(count, prompt, self.spec.vocab_size, seed=1)
        decode(engine, asked, 4)
        _, _, prefill_s = decode(engine, asked, 1)
        _, decode_s, total_s = decode(engine, asked, output)
        rate, alone = count * output / total_s, count * output / decode_s
        step_ms = 1e3 * (total_s - prefill_s) / (output - 1)
        self.row(
            what,
            f"{rate:.0f} output tokens/s with prefill, {alone:.0f} between first and last token; prompts alone "
            f"{1e3 * prefill_s:.0f} ms, then {step_ms:.2f} ms a step",
        )
        self.record[what] = {
            "tokens_per_s": rate,
            "decode_tokens_per_s": alone,
            "prefill_ms": 1e3 * prefill_s,
            "step_ms": step_ms,
            "requests": count,
        }

    def graph_equals_eager(self) -> None:
        """The same tokens with and without graphs, at several batch sizes."""
        for count in self.arguments.batches:
            asked = prompts(count, 33, self.spec.vocab_size, seed=2)
            tokens: list[list[tuple[int, ...]]] = []
            drawn: list[list[tuple[int, ...]]] = []
            for graphs in (False, True):
                engine = self.engine(self.chosen, max_batch=count, graphs=graphs, buckets=(count,))
                if not graphs and not self.arguments.no_select:
                    self.choose(engine, count)
                tokens.append(decode(engine, asked, 24)[0])
                drawn.append(decode(engine, asked, 24, **_DRAWN)[0])
                engine.close()
                del engine
                release()
            same = sum(a == b for a, b in zip(*tokens, strict=True))
            self.row(f"graph = eager, batch {count}", f"{same} of {count} sequences equal", ok=same == count)
            same = sum(a == b for a, b in zip(*drawn, strict=True))
            self.row(f"graph = eager, drawn, batch {count}", f"{same} of {count} sequences equal", ok=same == count)

    def long_context(self) -> None:
        """Recorded on padding of one token, replayed at 8k: as right and as fast as eager there."""
        asked = prompts(1, 8000, self.spec.vocab_size, seed=3)
        found = {}
        for graphs in (False, True):
            engine = self.engine(self.chosen, max_model_len=8192, graphs=graphs, kv_blocks=1024)
            if not graphs and not self.arguments.no_select:
                self.select(engine, 1, context=8000)
            found[graphs] = decode(engine, asked, 64)
            engine.close()
            del engine
            release()
        took = {g: 1e3 * f[1] / 63 for g, f in found.items()}
        same = found[True][0] == found[False][0]
        text = f"{'same' if same else 'other'} tokens; {took[True]:.2f} ms a token, eager {took[False]:.2f}"
        self.row("recorded at 1, replayed at 8k", text, ok=same)
        self.record["8k"] = {"ms_per_token": took[True], "same_tokens": same}

    def alone(self) -> None:
        """Batch 1: the library path, then as chosen."""
        output = 128 if self.arguments.quick else 512
        if not self.arguments.no_library:
            engine = self.engine()
            self.single(engine, "library path, graphs", output=output)
            engine.close()
        engine = self.engine(self.chosen)
        if not self.arguments.no_select:
            self.choose(engine, 1)
        self.single(engine, "selected, graphs", output=output)
        engine.close()

    def together(self) -> None:
        """Requests that arrive at once."""
        for count in (8, 64):
            settings = {"max_batch": count, "buckets": (1, count), "max_step_tokens": self.arguments.step_tokens}
            engine = self.engine(self.chosen, **settings)
            if not self.arguments.no_select:
                self.choose(engine, count)
            self.batch(engine, f"{count} requests of i512/o256", count)
            engine.close()
            del engine
            release()
            self.plain_prompts(count, settings)

    def plain_prompts(self, count: int, settings: dict[str, Any]) -> None:
        """Prompts alone on the library path and on what is faster: the same first tokens, and how long each takes."""
        asked = prompts(count, 512, self.spec.vocab_size, seed=1)
        found: dict[bool, tuple[list[tuple[int, ...]], float]] = {}
        for fast in (False, True):
            engine = self.engine(self.chosen, fast_prompts=fast, **settings)
            decode(engine, asked, 1)
            runs = [decode(engine, asked, 1) for _ in range(3)]
            found[fast] = runs[0][0], sorted(r[2] for r in runs)[1]
            engine.close()
            del engine
            release()
        same = sum(a == b for a, b in zip(found[False][0], found[True][0], strict=True))
        text = f"{1e3 * found[False][1]:.0f} ms on the library path, {1e3 * found[True][1]:.0f} ms as it is; "
        self.row(f"prompts of {count} requests alone", f"{text}{same} of {count} first tokens equal")
        self.record[f"prompts of {count}"] = {"library_ms": 1e3 * found[False][1], "ms": 1e3 * found[True][1]}


def release() -> None:
    """Give freed memory back before the next engine plans its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_model(name: str, report: Report, arguments: argparse.Namespace, save: Callable[[], None]) -> int:
    """All sections of one model; ``save`` is called after each. The exit code: LOST when the device is gone."""
    bench = ModelBench(name, report, arguments)
    sections: dict[str, Callable[[], None]] = {"batch 1": bench.alone}
    if not arguments.quick:
        sections["batches"] = bench.together
    sections["graph against eager"] = bench.graph_equals_eager
    if not arguments.quick:
        sections["long context"] = bench.long_context
    if arguments.peers:
        from bench.gpu.peers import time_peers

        sections["peers"] = lambda: time_peers(name, CONFIGS[name], report)
    for what, section in sections.items():
        start = time.perf_counter()
        try:
            section()
        except Exception as error:
            report.add(f"{name}: {what}", type(error).__name__, " ".join(str(error).split())[:1500], ok=False)
            report.say(traceback.format_exc())
            if isinstance(error, DeviceLostError) or not _alive():
                save()
                return LOST
        report.say(f"-- {name}: {what}: {time.perf_counter() - start:.1f} s")
        save()
        release()
    return 1 if report.failures else 0


def _alive() -> bool:
    """Whether the device still answers."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:  # torch's and the driver's errors have no common type
        return False
    return True
