"""The decode engine on one GPU, random weights at real sizes: speed, graphs against eager, selection, all families.

    python bench/gpu/engine.py --out DIR [--models qwen3-4b,…] [--quick] [--peers] [--no-select]

Writes ``engine.json`` and ``engine.log`` into DIR and prints a table last. Every section runs whatever happened to the
others. ``--peers`` also times Hugging Face eager and its static cache under ``torch.compile``, in the same run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from bench.gpu.model_configs import CONFIGS
from bench.gpu.report import Report
from kb.dtype import Target
from kb.library import library_root
from kb.store import KernelStore
from runtime.bandwidth import measure_bandwidth
from runtime.device import device_for
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.library_ops import Library
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import as_table, select
from runtime.engine.speed import floor_ms
from runtime.models.spec import spec_from_config
from runtime.models.weights import random_weights
from runtime.sites import Selection

ROOT = Path(__file__).resolve().parents[2]


def prompts(count: int, length: int, vocab: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, distinct prompts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocab, (count, length), generator=generator).tolist()


def decode(engine: Engine, asked: list[list[int]], tokens: int) -> tuple[list[tuple[int, ...]], float, float]:
    """Run ``asked`` to ``tokens`` each; their tokens, seconds from first token to last, and seconds in all."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    results: dict[str, tuple[int, ...]] = {}
    times: list[float] = []

    def on_output(output: Any) -> None:
        times.append(time.perf_counter())
        if output.finished:
            results[output.request_id] = engine.result(output.request_id).token_ids

    torch.cuda.synchronize()
    start = time.perf_counter()
    names = [engine.add_request(p, params, on_output=on_output) for p in asked]
    for _ in engine.run():
        pass
    return [results[n] for n in names], times[-1] - times[0], times[-1] - start


class Bench:
    """One model and what is measured of it."""

    store: KernelStore | None = None
    cache: Path | None = None

    def __init__(self, name: str, report: Report, quick: bool) -> None:
        self.name, self.report, self.quick = name, report, quick
        self.spec = spec_from_config(CONFIGS[name], {})
        self.weights = random_weights(self.spec, torch.device("cuda"), torch.bfloat16)
        self.record: dict[str, Any] = {"weight_bytes": self.weights.nbytes}
        report.record[name] = self.record

    def engine(self, selection: Selection | None = None, **settings: Any) -> Engine:
        defaults = {"max_batch": 1, "max_model_len": 1024, "kv_blocks": None, "prefix_cache": False}
        return Engine(self.spec, self.weights, EngineConfig(**{**defaults, **settings}), selection=selection)

    def row(self, what: str, text: str, *, ok: bool = True) -> None:
        self.report.add(self.name, what, text, ok=ok)

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
        _, decode_s, total_s = decode(engine, asked, output)
        rate, alone = count * output / total_s, count * output / decode_s
        self.row(what, f"{rate:.0f} output tokens/s with prefill, {alone:.0f} between first and last token")
        self.record[what] = {"tokens_per_s": rate, "decode_tokens_per_s": alone, "requests": count}

    def graph_equals_eager(self, selection: Selection | None) -> None:
        """The same tokens with and without graphs, at several batch sizes."""
        for count in (1, 8, 64):
            asked = prompts(count, 33, self.spec.vocab_size, seed=2)
            tokens = []
            for graphs in (False, True):
                engine = self.engine(selection, max_batch=count, graphs=graphs, buckets=(count,))
                if selection is not None and not graphs:
                    self.choose_quietly(engine, count)
                tokens.append(decode(engine, asked, 24)[0])
                engine.close()
                del engine
                release()
            same = sum(a == b for a, b in zip(*tokens, strict=True))
            self.row(f"graph = eager, batch {count}", f"{same} of {count} sequences equal", ok=same == count)

    def choose_quietly(self, engine: Engine, bucket: int) -> None:
        """Selection for one bucket, from the record where an equal engine was measured before."""
        select(engine.executor, library_root(), store=self.store, buckets=(bucket,), cache=self.cache)

    def long_context(self, selection: Selection | None) -> None:
        """Recorded on padding of one token, replayed at 8k: as right and as fast as eager there."""
        asked = prompts(1, 8000, self.spec.vocab_size, seed=3)
        found = {}
        for graphs in (False, True):
            engine = self.engine(selection, max_model_len=8192, graphs=graphs, kv_blocks=1024)
            if selection is not None and not graphs:
                select(engine.executor, library_root(), store=self.store, buckets=(1,), context=8000, cache=self.cache)
            found[graphs] = decode(engine, asked, 64)
            engine.close()
            del engine
            release()
        took = {g: 1e3 * f[1] / 63 for g, f in found.items()}
        same = found[True][0] == found[False][0]
        text = f"{'same' if same else 'other'} tokens; {took[True]:.2f} ms a token, eager {took[False]:.2f}"
        self.row("recorded at 1, replayed at 8k", text, ok=same)
        self.record["8k"] = {"ms_per_token": took[True], "same_tokens": same}

    def choose(self, engine: Engine, buckets: tuple[int, ...], store: KernelStore | None, cache: Path) -> None:
        """Measured selection, and what it said."""
        start = time.perf_counter()
        choices = select(engine.executor, library_root(), store=store, buckets=buckets, cache=cache)
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
        self.record["selection"] = as_table(choices)


def release() -> None:
    """Give freed memory back before the next engine plans its own."""
    gc.collect()
    torch.cuda.empty_cache()


def attempt(report: Report, what: str, section: Callable[[], Any]) -> None:
    """Run one section; its failure is a row."""
    start = time.perf_counter()
    try:
        section()
    except Exception as error:
        report.add(what, type(error).__name__, " ".join(str(error).split())[:300], ok=False)
        report.say(traceback.format_exc())
    report.say(f"-- {what}: {time.perf_counter() - start:.1f} s")
    release()


def run_model(name: str, report: Report, arguments: argparse.Namespace) -> None:
    bench = Bench(name, report, arguments.quick)
    store = KernelStore(Path(arguments.store)) if Path(arguments.store).is_dir() else None
    cache = Path(arguments.out) / "selection"
    bench.store, bench.cache = store, cache
    chosen = Selection(Library())

    def first() -> None:
        if not arguments.no_library:
            engine = bench.engine()
            bench.single(engine, "library path, graphs")
            engine.close()
        engine = bench.engine(chosen)
        if not arguments.no_select:
            bench.choose(engine, (1,), store, cache)
        bench.single(engine, "selected, graphs")
        engine.close()

    def batches() -> None:
        for count in (8, 64):
            engine = bench.engine(chosen, max_batch=count, buckets=(1, count), max_step_tokens=8192)
            if not arguments.no_select:
                bench.choose(engine, (count,), store, cache)
            bench.batch(engine, f"{count} requests of i512/o256", count)
            engine.close()
            del engine
            release()

    attempt(report, f"{name}: batch 1", first)
    if arguments.quick:
        attempt(report, f"{name}: graph against eager", lambda: bench.graph_equals_eager(chosen))
        return
    attempt(report, f"{name}: batches", batches)
    attempt(report, f"{name}: graph against eager", lambda: bench.graph_equals_eager(chosen))
    attempt(report, f"{name}: long context", lambda: bench.long_context(chosen))
    if arguments.peers:
        from bench.gpu.peers import time_peers

        attempt(report, f"{name}: peers", lambda: time_peers(name, CONFIGS[name], report))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="qwen3-4b")
    parser.add_argument("--store", default=str(ROOT / "kernels"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--no-select", action="store_true")
    parser.add_argument("--no-library", action="store_true")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    report, start = Report(), time.perf_counter()
    device = device_for(Target.CUDA)
    report.record |= {"device": device.name, "driver": device.driver, "versions": dict(device.versions)}
    report.record["read_gbps"] = measure_bandwidth(device).best_gbps
    report.add("device", device.name, f"reads {report.record['read_gbps']:.0f} GB/s")
    for name in arguments.models.split(","):
        attempt(report, name, lambda name=name: run_model(name, report, arguments))
        report.record["seconds"] = time.perf_counter() - start
        report.write(out, "engine")
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
