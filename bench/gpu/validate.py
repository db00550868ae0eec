"""Judges the calibration corpus on one GPU: right candidates pass every gate, wrong ones are rejected, hung ones die.

    python bench/gpu/validate.py --out DIR [--minutes 7.5] [--only NAME...] [--timed NAME...] [--sections NAMES]

Writes ``validate.json`` and ``validate.log`` into DIR and prints a table last. Correctness is judged in several
processes at once, timing in one. Sections run whatever happened to the others; timing stops where the minutes end, and
says what it left out. A part can be run again alone: ``--only`` names the candidates to judge and ``--timed`` the right
ones to time (default: those of ``--only``), each by any part of its folder's name; ``--sections`` is comma-separated.
Exit status 1 when a right candidate failed a gate before timing, a wrong one was not rejected by the gate named, or a
hung one outlived its limit by more than ten seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.baseline_warmup import Compilation, warm_up
from bench.gpu.calibration_jobs import (
    HANG_LIMIT,
    HIDDEN,
    Job,
    compile_one,
    judge_one,
    right_jobs,
    start,
    stored_jobs,
    time_one,
    wrong_jobs,
)
from bench.gpu.report import Report
from kb.candidate import Candidate, Launch, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from kb.manifest import GateName, Outcome, Verdict
from runtime.compile_cache import CompileCache
from validator.gates import Options
from validator.shapes import hidden_shapes, sweep_shapes

CORRECTNESS = tuple(g for g in GateName if g is not GateName.PERFORMANCE)
ALLOWED_AFTER_LIMIT = 10.0


# --- sections --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """What every section needs."""

    contracts: dict[str, Contract]
    cache: Path
    report: Report
    only: tuple[str, ...]
    timed: tuple[str, ...]
    deadline: float
    out: Path

    def save(self) -> None:
        """Write what was seen so far, so that a run cut short leaves it."""
        self.report.write(self.out, "validate")

    def wanted(self, jobs: Iterator[Job]) -> list[Job]:
        """Those to judge."""
        return _named(jobs, self.only)

    def to_time(self) -> list[Job]:
        """The right candidates to time."""
        return _named(right_jobs(), self.timed or self.only)

    def pool(self, processes: int) -> ProcessPoolExecutor:
        # Every one of them works on the host too: more threads than cores, each waiting busily, would slow all of them.
        threads = max(1, min(8, (os.cpu_count() or 2) // processes))
        context = get_context("spawn")
        return ProcessPoolExecutor(processes, context, initializer=start, initargs=(self.cache, threads))


def _named(jobs: Iterator[Job], names: tuple[str, ...]) -> list[Job]:
    return [job for job in jobs if not names or any(name in job.name for name in names)]


def environment(bench: Bench) -> None:
    """The device, and the layers of the sandbox that hold around a process that uses it."""
    from runtime.clocks import read_clocks
    from runtime.device import cuda_device
    from validator.sanitizers import cuda as sanitizer
    from validator.worker import Worker, WorkerFailure

    device = cuda_device()
    bench.report.record["device"] = {"name": device.name, "arch": device.arch, "driver": device.driver}
    bench.report.record["clocks_before"] = dict(read_clocks(Target.CUDA, device.uuid))
    bench.report.add("device", device.name, f"{device.arch}, driver {device.driver}, torch {device.versions['torch']}")
    tool = sanitizer.find_tool()
    bench.report.add("device", "compute-sanitizer", str(tool or sanitizer.INSTALL), ok=tool is not None)
    with Worker(Target.CUDA) as worker:
        for namespaces in (True, False):
            name = "with namespaces" if namespaces else "without namespaces"
            with worker.open(namespaces=namespaces) as resident:
                try:
                    resident.warm()
                    bench.report.add("sandbox", name, ", ".join(resident.layers))
                except WorkerFailure as failure:
                    bench.report.add("sandbox", name, f"the device is out of reach: {failure.finding.message}")


def compile_all(bench: Bench) -> None:
    """Every image of the right candidates, in many processes, into the cache that the judgements read."""
    _compile(bench, "right candidates", bench.wanted(right_jobs()))


def _compile(bench: Bench, name: str, jobs: Sequence[Job]) -> None:
    tasks = []
    for job in jobs:
        contract = bench.contracts[job.contract]
        shapes = [*sweep_shapes(contract), *hidden_shapes(contract, job.seed, HIDDEN)]
        tasks += [(job, shape, storage) for shape in shapes for storage in contract.dtypes.storage]
    started = time.monotonic()
    if not tasks:
        return
    with bench.pool(max(1, min(14, (os.cpu_count() or 2) - 1))) as pool:
        failures = [error for error in pool.map(compile_one, tasks, chunksize=4) if error]
    text = f"{len(tasks)} images in {time.monotonic() - started:.0f} s"
    bench.report.add("compile", name, f"{text}; {failures[:3]}" if failures else text, ok=not failures)


def compile_baselines(bench: Bench) -> None:
    """The library paths that compile themselves, at the shapes that will be timed."""
    from runtime.baselines import available_baselines

    started = time.monotonic()
    timed = {job.contract for job in bench.to_time()}
    tasks = [
        Compilation(contract.id, dims, baseline.name)
        for contract in (bench.contracts[name] for name in sorted(timed))
        for dims in contract.sweep.performance
        for baseline in available_baselines(contract, Target.CUDA)
        if baseline.name != "torch_eager"
    ]
    failures = warm_up(tasks)
    text = f"{len(tasks)} in {time.monotonic() - started:.0f} s, {len(failures)} failed {failures[:2]}"
    bench.report.add("compile", "baselines", text)


HANG = """
extern "C" __global__ void hang(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                                T* __restrict__ out, float eps, void* __restrict__ workspace) {
  volatile float* const watched = reinterpret_cast<volatile float*>(workspace);
  while (watched[0] >= 0.0f) watched[1] = eps;
}
"""


def hang(bench: Bench) -> None:
    """How long after its limit a kernel is gone that never ends, and whether the device works again."""
    from validator.judge import judge

    contract = bench.contracts["residual_rmsnorm"]
    plan = LaunchPlan.model_validate({"launches": [Launch(entry="hang")], "workspace": {"bytes": 64, "zeroed": "once"}})
    candidate = Candidate(contract=contract.id, target=Target.CUDA, source=HANG, plan=plan)
    dims = dict(contract.sweep.correctness[0])
    options = Options(gates=(GateName.INTERFACE,), dims=dims, call_seconds=HANG_LIMIT)
    cache = CompileCache(bench.cache)
    verdict = judge(candidate, contract, options=options, cache=cache)
    failed = verdict.failed_gate
    code = failed.findings[0].code if failed else "nothing"
    text = f"{code}; the gate took {verdict.gates[2].seconds:.1f} s, starting its worker included"
    bench.report.add("hang", "judged", text, ok=code == "timed-out")
    _time_kill(bench, candidate, contract, dims)


def _time_kill(bench: Bench, candidate: Candidate, contract: Contract, dims: dict[str, int]) -> None:
    """The kill alone: from the limit to the worker's word that the process is gone."""
    import torch

    from runtime.kernel import compile_candidate
    from validator.arena import Arena, plan_layout
    from validator.inputs import make_inputs
    from validator.worker import Worker, WorkerFailure

    compiled = compile_candidate(candidate, contract, dims, DType.BFLOAT16, cache=CompileCache(bench.cache))
    with Worker(Target.CUDA) as worker, worker.open() as resident:
        resident.warm()
        layout = plan_layout(contract, dims, DType.BFLOAT16, compiled.workspace_bytes)
        number, memory = resident.share(layout.nbytes)
        arena = Arena(contract, layout, memory, torch.Generator().manual_seed(1), True)
        inputs = make_inputs(contract, dims, DType.BFLOAT16, "normal", 1)
        arena.fill(inputs)
        kernel, _ = resident.load(compiled)
        call = resident.bind(kernel, number, layout, inputs.scalars)
        started = time.monotonic()
        try:
            resident.call([call], HANG_LIMIT)
            code = "returned"
        except WorkerFailure as failure:
            code = failure.finding.code
        after = time.monotonic() - started - HANG_LIMIT
    bench.report.record["kill_seconds_after_limit"] = after
    text = f"{code}, gone {after:.2f} s after the limit"
    bench.report.add("hang", "kill", text, ok=code == "timed-out" and after <= ALLOWED_AFTER_LIMIT)


def correctness(bench: Bench) -> None:
    """All candidates, several at once, the slowest kind first."""
    _judge(bench, bench.wanted(right_jobs()) + bench.wanted(wrong_jobs()))


def stored(bench: Bench) -> None:
    """The kernels of the store up to numerics; what a later check would have kept out shows here."""
    jobs = bench.wanted(stored_jobs())
    _compile(bench, "stored kernels", jobs)
    _judge(bench, jobs)


def _judge(bench: Bench, jobs: Sequence[Job]) -> None:
    verdicts: dict[str, Any] = bench.report.record.setdefault("verdicts", {})
    with bench.pool(7) as pool:
        futures = {pool.submit(judge_one, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                _, verdict, seconds = future.result()
            except Exception as error:
                bench.report.add("judge", job.name, f"{type(error).__name__}: {error}", ok=False)
                continue
            verdicts[job.name] = verdict if isinstance(verdict, str) else verdict.model_dump(mode="json")
            (_row_wrong if job.expected else _row_right)(bench.report, job, verdict, seconds)
            bench.save()


def _row_right(report: Report, job: Job, verdict: Verdict | str, seconds: float) -> None:
    kind = "stored" if job.stored else "right"
    if isinstance(verdict, str):
        report.add(kind, job.name, verdict.strip().splitlines()[-1], ok=False)
        report.say(verdict)
        return
    failed = verdict.failed_gate
    outcomes = {g.gate: g for g in verdict.gates}
    times = " ".join(f"{g.gate.value} {g.seconds:.1f}" for g in verdict.gates if g.outcome is Outcome.PASSED)
    sanitizer = outcomes[GateName.SANITIZER]
    text = f"{seconds:.1f} s: {times}"
    if sanitizer.outcome is Outcome.SKIPPED and failed is None and not job.stored:
        text += f"; sanitizer skipped: {sanitizer.reason}"
    if failed is not None:
        text = f"{failed.gate.value}: " + "; ".join(f"{f.code}: {f.message}" for f in failed.findings[:2])[:400]
    wanted = [g for g in CORRECTNESS if g in job.options.gates]
    passed = all(outcomes[g].outcome is Outcome.PASSED for g in wanted)
    report.add(kind, job.name, text, ok=passed)


def _row_wrong(report: Report, job: Job, verdict: Verdict | str, seconds: float) -> None:
    if isinstance(verdict, str):
        unreadable = verdict.startswith("unreadable") and "static" in job.expected
        report.add("wrong", job.name, verdict.strip().splitlines()[-1][:200], ok=unreadable)
        return
    failed = verdict.failed_gate
    if failed is None:
        report.add("wrong", job.name, f"nothing found; {' or '.join(job.expected)} should have", ok=False)
        return
    codes = [f.code for f in failed.findings]
    right = failed.gate.value in job.expected and (not job.codes or any(c in job.codes for c in codes))
    text = f"{failed.gate.value}: {codes[0] if codes else ''} ({seconds:.1f} s)"
    if not right:
        first = failed.findings[0].message[:250] if failed.findings else ""
        text += f", not {' or '.join(job.expected)} {' or '.join(job.codes)}: {first}"
    report.add("wrong", job.name, text, ok=right)


def alone(bench: Bench) -> None:
    """One full judgement with the device to itself, timing included: what a user waits for."""
    jobs = [job for job in bench.to_time() if job.contract in ("gated_mlp_up", "paged_decode_attention")][:2]
    with bench.pool(1) as pool:
        for job in jobs:
            whole = Job(job.folder, job.contract, GateName.PERFORMANCE, quick=False)
            _, verdict, seconds = pool.submit(judge_one, whole).result(timeout=240)
            if isinstance(verdict, str):
                bench.report.add("alone", job.folder.name, verdict.strip().splitlines()[-1], ok=False)
                continue
            times = " ".join(f"{g.gate.value} {g.seconds:.1f}" for g in verdict.gates)
            sweep = sum(g.seconds for g in verdict.gates if g.gate in (GateName.INTERFACE, GateName.NUMERICS))
            bench.report.record.setdefault("alone", {})[job.folder.name] = verdict.model_dump(mode="json")
            text = f"{seconds:.1f} s in all ({times}); sweep {sweep:.1f} s, under 60 s wanted"
            bench.report.add("alone", job.folder.name, text, ok=sweep < 60)


def timing(bench: Bench) -> None:
    """The performance gate of the right candidates, one after the other. They are simple: what counts is the record."""
    import torch

    torch.cuda.empty_cache()
    left: list[str] = []
    with bench.pool(1) as pool:
        for job in bench.to_time():
            if time.monotonic() > bench.deadline - 45:
                left.append(job.folder.name)
                continue
            future = pool.submit(time_one, job)
            try:
                verdict, seconds = future.result(timeout=max(30.0, bench.deadline - time.monotonic()))
            except Exception as error:
                bench.report.add("timing", job.folder.name, f"{type(error).__name__}: {error}"[:300], ok=False)
                continue
            _row_timing(bench.report, job, verdict, seconds)
            bench.save()
    if left:
        bench.report.add("timing", "left out", f"no time for {', '.join(left)}")


def _row_timing(report: Report, job: Job, verdict: Verdict, seconds: float) -> None:
    report.record.setdefault("timings", {})[job.folder.name] = [t.model_dump(mode="json") for t in verdict.timings]
    gate = verdict.gates[-1]
    unexpected = [f for f in gate.findings if f.code != "too-slow"]
    shapes = "; ".join(
        f"{t.candidate_us:.1f} us, {t.ratio:.2f} x {t.baseline}, {t.bandwidth_share:.0%}" for t in verdict.timings
    )
    text = f"{gate.outcome.value}: {shapes or gate.reason} ({seconds:.0f} s)"
    if unexpected:
        text = f"{unexpected[0].code}: {unexpected[0].message}"[:400]
    report.add("timing", job.folder.name, text, ok=not unexpected and gate.outcome is not Outcome.SKIPPED)


SECTIONS: Sequence[Callable[[Bench], None]] = (
    environment,
    compile_all,
    hang,
    correctness,
    compile_baselines,
    alone,
    timing,
    stored,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--only", nargs="+", default=[], help="judge only candidates whose name holds one of these")
    parser.add_argument(
        "--timed", nargs="+", default=[], help="time only right candidates whose name holds one of these"
    )
    parser.add_argument("--sections", default="", help="comma-separated names of the sections to run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    report = Report()
    report.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    contracts = dict(load_library(library_root()).contracts)
    images = tempfile.TemporaryDirectory(prefix="validate-images-")
    # Workers run as nobody in namespaces of their own; caches by user name would not be found again.
    os.environ.setdefault("TRITON_CACHE_DIR", f"{images.name}/triton")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{images.name}/inductor")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    deadline = started + 60 * given.minutes
    cache = Path(images.name) / "images"
    bench = Bench(contracts, cache, report, tuple(given.only), tuple(given.timed), deadline, given.out)
    for section in SECTIONS:
        if given.sections and section.__name__ not in given.sections.split(","):
            continue
        began = time.monotonic()
        try:
            section(bench)
        except Exception as error:
            report.say(traceback.format_exc())
            report.add(section.__name__, "whole section", f"{type(error).__name__}: {error}"[:300], ok=False)
        report.say(f"-- {section.__name__}: {time.monotonic() - began:.1f} s")
        report.record["seconds"] = round(time.monotonic() - started, 1)
        bench.save()
    images.cleanup()
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
