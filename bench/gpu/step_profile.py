"""Where a step's time goes on one GPU: kernels, counts, microseconds, gaps; decode graphs by bucket, prompts by size.

    python bench/gpu/step_profile.py --model qwen3-4b --buckets 1,8,64 --out DIR [--prefill 512,2048,8192] [--no-select]

Decode: the captured step with the selection made, every sequence ``--context`` tokens long, replayed under
torch.profiler. Prompts: that many prompt tokens as prompts of at most 512, in one step. For each: time by the
host's clock without the profiler, what kernels take, how much of it overlaps (dependent launches start early), and how
long nothing runs. Of each kernel also what it takes in the chain, from the end of the one before it to its own, and how
early it begins before that end. ``--alone`` profiles the step with the fastest kernel alone at every site as well.
Writes ``step_profile.json`` and ``step_profile.log`` into DIR. Weights are random.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.model_configs import CONFIGS, DRY_RUN
from bench.gpu.report import Report
from kb.dtype import Target
from kb.library import library_root, load_library
from kb.store import KernelStore
from runtime.bandwidth import measure_bandwidth
from runtime.device import device_for
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.rehearsal import rehearsal
from runtime.engine.request import SamplingParams
from runtime.engine.selecting import CandidateList, select
from runtime.engine.speed import floor_ms
from runtime.models.spec import spec_from_config
from runtime.models.weights import random_weights

_LONGEST_PROMPT = 512
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel's run, microseconds on the profiler's clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel of one repetition: how often it runs, what its runs take, how long nothing runs before them. Medians of
    its runs: ``takes``, from the end of the kernel before to its own; ``early``, how long before that end it begins."""

    name: str
    runs: float
    us: float
    gap: float
    takes: float
    early: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one repetition, microseconds. ``span``: first start to last end. ``busy``: when anything ran. ``overlap``:
    what kernels took beyond that, because they ran side by side. ``gaps``: when nothing ran."""

    span: float
    busy: float
    overlap: float
    gaps: float
    rows: tuple[Row, ...]  # most µs first


def summarise(spans: Sequence[Span], repetitions: int) -> Summary:
    """Kernels by name over ``repetitions`` equal repetitions. Raises ValueError without spans."""
    if not spans:
        raise ValueError("the profiler saw no kernel; is CUPTI there and may this user profile?")
    ordered = sorted(spans, key=lambda s: s.start)
    runs: dict[str, list[tuple[float, float, float, float]]] = {}
    frontier, busy, total = ordered[0].start, 0.0, 0.0
    for span in ordered:
        took = span.end - span.start
        chain = max(0.0, span.end - frontier), frontier - span.start
        runs.setdefault(span.name, []).append((took, max(0.0, span.start - frontier), *chain))
        busy += max(0.0, span.end - max(span.start, frontier))
        total += took
        frontier = max(frontier, span.end)
    whole = frontier - ordered[0].start
    rows = []
    for name, seen in runs.items():
        us, gaps, takes, early = zip(*seen, strict=True)
        shares = len(seen) / repetitions, sum(us) / repetitions, sum(gaps) / repetitions
        rows.append(Row(name, *shares, takes=statistics.median(takes), early=statistics.median(early)))
    span, ran, beside, idle = (value / repetitions for value in (whole, busy, total - busy, whole - busy))
    return Summary(span, ran, beside, idle, tuple(sorted(rows, key=lambda r: -r.us)))


def profiled(run: Callable[[], None], device: torch.device) -> list[Span]:
    """Every kernel of ``_REPEATS`` runs (on a CPU, every operation)."""
    cuda = device.type == "cuda"
    kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        for _ in range(_REPEATS):
            run()
        _wait(device)
    events = [e for e in seen.events() or () if e.device_type == kind]
    return [Span(e.name, float(e.time_range.start), float(e.time_range.end)) for e in events]


def clocked(run: Callable[[], None], device: torch.device, times: int) -> float:
    """Median microseconds of ``run`` by the host's clock, the device waited for after each."""
    run()
    taken = []
    for _ in range(times):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        taken.append(1e6 * (time.perf_counter() - start))
    return statistics.median(taken)


class StepProfile:
    """One engine and what its steps consist of."""

    def __init__(self, arguments: argparse.Namespace, report: Report) -> None:
        self.report, self.top = report, arguments.top
        self.device = torch.device(arguments.device)
        target = Target.CUDA if self.device.type == "cuda" else Target.CPU
        self.gbps = measure_bandwidth(device_for(target)).best_gbps
        report.record |= {"model": arguments.model, "device": device_for(target).name, "read_gbps": self.gbps}
        report.add("device", device_for(target).name, f"reads {self.gbps:.0f} GB/s")
        spec = spec_from_config((CONFIGS | DRY_RUN)[arguments.model], {})
        self.weights = random_weights(spec, self.device, torch.bfloat16)
        most = max(arguments.buckets)
        self.engine = Engine(
            spec,
            self.weights,
            EngineConfig(
                max_batch=max(most, -(-max(arguments.prefill, default=1) // _LONGEST_PROMPT)),
                buckets=tuple(arguments.buckets),
                max_model_len=1024,
                max_step_tokens=max([2 * most, *arguments.prefill]) + 1,
                prefix_cache=False,
                fast_prompts=not arguments.plain_prompts,
            ),
        )
        self.candidates = CandidateList(load_library(library_root()).contracts, _store(arguments), target)
        if not arguments.no_select:
            self._select(arguments)

    def alone(self) -> None:
        """Put the admitted kernel that is fastest alone at every site where the selection has chosen something."""
        selection = self.engine.executor.selection
        for site in list(selection.chosen):
            if (best := next((k for k in self.candidates(site) if k.digest), None)) is not None:
                selection.choose(site, best)
        self.engine.executor.forget_programs()

    def _select(self, arguments: argparse.Namespace) -> None:
        start = time.perf_counter()
        cache = Path(arguments.selections) / "profile"
        buckets = arguments.buckets
        choices = select(
            self.engine.executor,
            library_root(),
            store=None,
            buckets=buckets,
            context=arguments.context,
            cache=cache,
            candidates=self.candidates,
        )
        for choice in choices:
            names = ", ".join(f"{s.site.operation} {s.chosen}" for s in choice.sites)
            text = f"{choice.library_us:.0f} -> {choice.step_us:.0f} µs; {names}"
            self.report.add("selection", f"bucket {choice.bucket}", text)
        self.report.say(f"-- selection: {time.perf_counter() - start:.0f} s")

    def decode(self, bucket: int, context: int, note: str = "") -> None:
        """The captured greedy step of ``bucket`` sequences; ``note`` is put behind its name."""
        executor = self.engine.executor
        with torch.inference_mode():
            program = executor.program(bucket, True)
            with rehearsal(program.buffers, executor.decoder.pool, context) as length:
                took = clocked(program.run, self.device, 30)
                spans = profiled(program.run, self.device)
        floor = 1e3 * floor_ms(self.engine.spec, self.weights, bucket, length, self.gbps)
        self._tell(f"decode, bucket {bucket}, {length} tokens each{note}", spans, took, floor)

    def prefill(self, tokens: int) -> None:
        """One step of ``tokens`` prompt tokens, and the first token of each prompt."""
        longest = min(_LONGEST_PROMPT, tokens)
        lengths = [longest] * (tokens // longest) + ([tokens % longest] if tokens % longest else [])
        asked = [[(7 * i + j) % self.engine.spec.vocab_size for j in range(n)] for i, n in enumerate(lengths)]

        def run() -> None:
            self.engine.generate(asked, SamplingParams(max_tokens=1, ignore_eos=True))

        took = clocked(run, self.device, 3)
        spans = profiled(run, self.device)
        self._tell(f"prefill, {tokens} tokens in {len(asked)} prompts", spans, took, 0.0)

    def _tell(self, what: str, spans: Sequence[Span], took: float, floor: float) -> None:
        found = summarise(spans, _REPEATS)
        beside = f", floor {floor:.0f}" if floor else ""
        self.report.add(
            what,
            "step",
            f"{took:.0f} µs by the clock{beside}; profiled {found.span:.0f}: {found.busy:.0f} busy, {found.gaps:.0f} "
            f"nothing runs, {found.overlap:.0f} overlap",
        )
        for row in found.rows[: self.top]:
            each = f"{row.runs:7.1f} runs {row.us / row.runs:8.2f} µs each, {row.gap:7.1f} µs idle before"
            chain = f"takes {row.takes:8.2f} in the chain, begins {row.early:6.2f} early"
            self.report.add(what, row.name[:90], f"{row.us:9.1f} µs {row.us / found.span:6.1%} {each}; {chain}")
        rest = found.rows[self.top :]
        if rest:
            text = f"{sum(r.us for r in rest):9.1f} µs {sum(r.runs for r in rest):13.1f} runs"
            self.report.add(what, f"{len(rest)} others", text)
        self.report.record[what] = {
            "clock_us": took,
            "floor_us": floor,
            "span_us": found.span,
            "busy_us": found.busy,
            "idle_us": found.gaps,
            "overlap_us": found.overlap,
            "kernels": [
                {
                    "name": row.name,
                    "runs": row.runs,
                    "us": row.us,
                    "idle_before_us": row.gap,
                    "takes_us": row.takes,
                    "early_us": row.early,
                }
                for row in found.rows
            ],
        }


def _store(arguments: argparse.Namespace) -> KernelStore | None:
    return KernelStore(Path(arguments.store)) if Path(arguments.store).is_dir() else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="qwen3-4b", choices=[*CONFIGS, *DRY_RUN])
    parser.add_argument("--buckets", default="1,8,64")
    parser.add_argument("--context", type=int, default=640, help="tokens every sequence has")
    parser.add_argument("--prefill", default="512,2048,8192", help="prompt tokens of a step; empty for none")
    parser.add_argument("--top", type=int, default=25, help="kernels to print; the record holds all")
    parser.add_argument("--store", default=str(Path(__file__).resolve().parents[2] / "kernels"))
    parser.add_argument("--no-select", action="store_true", help="the library path everywhere")
    parser.add_argument("--alone", action="store_true", help="also with the kernel that is fastest alone at every site")
    parser.add_argument("--plain-prompts", action="store_true", help="steps with prompts on the library path")
    parser.add_argument("--selections", default=str(Path(tempfile.gettempdir()) / "agentcompile-selections"))
    parser.add_argument("--device", default="cuda", help="cpu, with --model tiny, for trying this script out")
    arguments = parser.parse_args()
    arguments.buckets = sorted({int(b) for b in arguments.buckets.split(",")})
    arguments.prefill = sorted({int(n) for n in arguments.prefill.split(",") if n})
    out, report, start = Path(arguments.out), Report(), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    steps = StepProfile(arguments, report)
    sections: list[tuple[str, Callable[[], Any]]] = [
        *((f"decode {b}", lambda b=b: steps.decode(b, arguments.context)) for b in arguments.buckets),
        *([("alone", steps.alone)] if arguments.alone else []),
        *(
            (f"decode {b}, alone", lambda b=b: steps.decode(b, arguments.context, ", fastest alone"))
            for b in (arguments.buckets if arguments.alone else [])
        ),
        *((f"prefill {n}", lambda n=n: steps.prefill(n)) for n in arguments.prefill),
    ]
    for name, section in sections:
        try:
            section()
        except Exception as error:  # the other sections are worth having
            report.add(name, type(error).__name__, " ".join(str(error).split())[:300], ok=False)
        report.record["seconds"] = time.perf_counter() - start
        report.write(out, "step_profile")
    report.say(f"-- {report.record['seconds']:.0f} s, {report.failures} failed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
