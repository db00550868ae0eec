"""The kernel templates on one GPU: every template through the gates, and products timed against the library.

    python bench/gpu/templates.py --out DIR [--minutes 8] [--only NAME] [--sections timing_one,timing_many]

Judges every template with its parameters, types and edge shapes up to numerics; times the tensor-core GEMM at 8 and 64
rows and the GEMV at one row against the library's product, in one interleaved run a shape of the six model families;
then judges the candidates of every contract. Writes ``templates.json`` and ``templates.log`` into DIR
and prints a table last. Sections run whatever happened to the others and stop where the minutes end, saying what was
left out. Exit status 1 when a template failed a gate or gave a wrong product.
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

from bench.gpu import template_jobs as jobs
from bench.gpu.model_configs import CONFIGS
from bench.gpu.report import Report
from generator.kernel_templates.parameters import GemvParameters, Parameters, TensorGemmParameters
from kb.manifest import Outcome

GEMV: tuple[Parameters, ...] = (
    GemvParameters(1, 0, 8, 4, 4),
    GemvParameters(1, 0, 8, 4, 4, True),
    GemvParameters(1, 1, 8, 4, 4),
    GemvParameters(1, 2, 4, 4, 4),
    GemvParameters(1, 2, 4, 4, 4, True),
    GemvParameters(1, 4, 4, 4, 4),
    GemvParameters(1, 8, 8, 4, 4),
    GemvParameters(2, 4, 8, 4, 4),
)
_TENSOR: tuple[Parameters, ...] = (
    TensorGemmParameters(0, 32, 64, 4, 2, 1),
    TensorGemmParameters(0, 32, 64, 4, 2, 4),
    TensorGemmParameters(0, 32, 64, 4, 2, 8),
    TensorGemmParameters(0, 64, 64, 4, 4, 1),
    TensorGemmParameters(0, 64, 64, 4, 4, 4),
    TensorGemmParameters(0, 64, 64, 6, 4, 8),
    TensorGemmParameters(0, 128, 64, 4, 4, 4),
    TensorGemmParameters(0, 128, 64, 4, 8, 8),
)
TENSOR: dict[int, tuple[Parameters, ...]] = {
    8: (
        *_TENSOR,
        TensorGemmParameters(0, 32, 64, 4, 2, 2),
        TensorGemmParameters(0, 16, 64, 6, 1, 1),
        TensorGemmParameters(0, 16, 128, 4, 1, 4),
        TensorGemmParameters(0, 32, 128, 4, 2, 4),
        TensorGemmParameters(0, 32, 64, 4, 2, 1, False, 3),
        TensorGemmParameters(0, 64, 64, 4, 4, 1, False, 2),
        TensorGemmParameters(0, 64, 64, 4, 4, 2, False, 3),
    ),
    64: (
        *_TENSOR,
        TensorGemmParameters(0, 128, 64, 4, 4, 2),
        TensorGemmParameters(0, 256, 64, 4, 8, 8),
        TensorGemmParameters(0, 64, 64, 4, 4, 4, False, 1),
        TensorGemmParameters(0, 64, 64, 4, 4, 8, False, 1),
        TensorGemmParameters(0, 128, 64, 4, 8, 4, False, 1),
        TensorGemmParameters(0, 128, 64, 4, 8, 8, False, 1),
        TensorGemmParameters(0, 64, 64, 6, 4, 8, False, 2),
    ),
}


@dataclass(slots=True)
class Bench:
    """What every section needs."""

    cache: Path
    report: Report
    only: str
    deadline: float
    read_gbps: float = 0.0

    def pool(self, processes: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(processes, get_context("spawn"), initializer=jobs.start, initargs=(self.cache,))

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()


class Child:
    """One process that may die or hang; the next call gets a new one."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[[Any], Any], argument: Any, seconds: float) -> Any:
        """The function's result; raises what it raised, or TimeoutError."""
        if self._pool is None:
            self._pool = self._bench.pool(1)
        try:
            return self._pool.submit(function, argument).result(timeout=seconds)
        except Exception:
            self.end()
            raise

    def end(self) -> None:
        """Stop the process, whatever it does."""
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.kill()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


# --- sections --------------------------------------------------------------------------------------------------------


def environment(bench: Bench) -> None:
    """The device and its read bandwidth, which shares are stated against."""
    child = Child(bench)
    found = child.run(jobs.environment, None, 120)
    child.end()
    bench.read_gbps = found["read_gbps"]
    bench.report.record["device"] = found
    methods = ", ".join(f"{name} {gbps:.0f}" for name, gbps in found["bandwidth"].items())
    bench.report.add("device", found["name"], f"{found['arch']}, driver {found['driver']}; GB/s: {methods}")


def compile_products(bench: Bench) -> None:
    """Everything that will be timed, in many processes."""
    started = time.monotonic()
    products = [*_products(bench, 1, GEMV), *(p for rows in TENSOR for p in _products(bench, rows, TENSOR[rows]))]
    tasks = [(p, q) for p in products for q in p.parameters]
    with bench.pool(max(1, min(14, (os.cpu_count() or 2) - 1))) as pool:
        failures = [error for error in pool.map(jobs.compile_one, tasks, chunksize=4) if error]
    text = f"{len(tasks)} images in {time.monotonic() - started:.0f} s"
    bench.report.add("compile", "products", f"{text}; {failures[:3]}" if failures else text, ok=not failures)


def timing_one(bench: Bench) -> None:
    """The GEMV at one row."""
    _time(bench, "gemv, 1 row", list(_products(bench, 1, GEMV)))


def timing_many(bench: Bench) -> None:
    """The tensor-core GEMM at 8 and at 64 rows."""
    for rows, parameters in TENSOR.items():
        _time(bench, f"gemm, {rows} rows", list(_products(bench, rows, parameters)))


def gates_cases(bench: Bench) -> None:
    """Every template with its parameters, in every type, at edge shapes."""
    _judge(bench, "template", [j for j in jobs.case_jobs() if bench.only in j.name])


def gates_contracts(bench: Bench) -> None:
    """The candidates of every contract."""
    wanted = [j for j in jobs.contract_jobs() if bench.only in j.name]
    _judge(bench, "contract", sorted(wanted, key=lambda j: j.number))


SECTIONS: Sequence[Callable[[Bench], None]] = (
    environment,
    gates_cases,
    compile_products,
    timing_many,
    timing_one,
    gates_contracts,
)


# --- products --------------------------------------------------------------------------------------------------------


def _products(bench: Bench, rows: int, parameters: tuple[Parameters, ...]) -> Iterator[jobs.Product]:
    """The products of a decoder layer and the vocabulary, of every family; equal shapes once."""
    seen = set()
    for family, config in CONFIGS.items():
        for name, outputs, inputs in _shapes(config.get("text_config", config)):
            label = f"{family} {name} {outputs}x{inputs}"
            if (outputs, inputs) not in seen and bench.only in label:
                seen.add((outputs, inputs))
                yield jobs.Product(label, rows, outputs, inputs, parameters)


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    yield "gate_up", 2 * config["intermediate_size"], hidden
    yield "down", hidden, config["intermediate_size"]
    yield "qkv", (heads + 2 * kv_heads) * head_dim, hidden
    yield "o_proj", hidden, heads * head_dim
    yield "lm_head", config["vocab_size"], hidden


def _time(bench: Bench, section: str, products: list[jobs.Product]) -> None:
    child = Child(bench)
    left_out = []
    for product in products:
        if bench.left < 20:
            left_out.append(product.label)
            continue
        try:
            timed: jobs.Timed = child.run(jobs.time_product, product, max(20.0, min(90.0, bench.left)))
        except Exception as error:
            bench.report.add(section, product.label, f"{type(error).__name__}: {error}"[:300], ok=False)
            continue
        if timed.poisoned:
            child.end()
        _row_timed(bench, section, product, timed)
    child.end()
    if left_out:
        bench.report.add(section, "left out", f"no time for {len(left_out)}: {', '.join(left_out)}")


def _row_timed(bench: Bench, section: str, product: jobs.Product, timed: jobs.Timed) -> None:
    record = {"micros": timed.micros, "errors": timed.errors, "problems": timed.problems}
    bench.report.record.setdefault("timed", {})[f"{section} {product.label}"] = record
    for name, problem in timed.problems.items():
        bench.report.say(f"  {product.label} {name}: {problem}")
    floor = product.outputs * product.inputs * 2 / max(bench.read_gbps, 1e-9) / 1e3

    def words(name: str) -> str:
        return f"{timed.micros[name]:.1f} us ({floor / timed.micros[name]:.0%})"

    for name in sorted(timed.micros, key=lambda n: timed.micros[n]):
        bench.report.say(f"  {product.label} {words(name)} {name}")
    wrong = [p for p in timed.problems.values() if not p.startswith("illegal")]
    templates = [n for n in timed.micros if n != "library"]
    if not templates or "library" not in timed.micros:
        bench.report.add(section, product.label, "; ".join(timed.problems.values())[:400] or "no times", ok=False)
        return
    best = min(templates, key=lambda n: timed.micros[n])
    ratio = timed.micros["library"] / timed.micros[best]
    text = f"library {words('library')}, template {words(best)}, ratio {ratio:.2f}; {best}"
    bench.report.add(
        section, product.label, text + (f"; {len(wrong)} wrong: {wrong[0]}" if wrong else ""), ok=not wrong
    )


# --- gates -----------------------------------------------------------------------------------------------------------


def _judge(bench: Bench, section: str, wanted: list[jobs.Judged]) -> None:
    """Judge in several processes; what has not begun by the deadline is left out."""
    left_out = []
    pool = bench.pool(max(2, min(12, (os.cpu_count() or 2) - 2)))
    try:
        futures = {pool.submit(jobs.judge_one, job): job for job in wanted}
        try:
            for future in as_completed(futures, timeout=max(5.0, bench.left)):
                _row_judged(bench, section, futures[future], future)
        except TimeoutError:
            left_out = [job.label for future, job in futures.items() if not future.done()]
    finally:
        for process in list((pool._processes or {}).values()):
            if left_out:
                process.kill()
        pool.shutdown(wait=not left_out, cancel_futures=True)
    if left_out:
        bench.report.add(section, "left out", f"no time for {len(left_out)}: {', '.join(left_out)}")


def _row_judged(bench: Bench, section: str, job: jobs.Judged, future: Any) -> None:
    try:
        _, verdict, words, seconds = future.result()
    except Exception as error:
        bench.report.add(section, job.label, f"{type(error).__name__}: {error}"[:300], ok=False)
        return
    if isinstance(verdict, str):
        bench.report.say(verdict)
        bench.report.add(section, job.label, f"{verdict.strip().splitlines()[-1][:200]}; {words}", ok=False)
        return
    bench.report.record.setdefault("verdicts", {})[f"{job.label} {words}"] = verdict.model_dump(mode="json")
    failed = verdict.failed_gate
    if failed is not None:
        found = "; ".join(f"{f.code}: {f.message}" for f in failed.findings[:2])[:500]
        bench.report.add(section, job.label, f"{failed.gate.value}: {found}; {words}", ok=False)
        return
    outcomes = {g.gate: g.outcome for g in verdict.gates}
    passed = all(outcomes[g] is Outcome.PASSED for g in jobs.GATES)
    reasons = "; ".join(g.reason for g in verdict.gates if g.gate in jobs.GATES and g.reason)
    bench.report.add(section, job.label, f"{'passed' if passed else reasons} ({seconds:.0f} s) {words}", ok=passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default="", help="only shapes, cases and contracts whose name holds this")
    parser.add_argument("--sections", default="", help="comma-separated names of the sections to run")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    report = Report()
    report.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    images = tempfile.TemporaryDirectory(prefix="template-images-", ignore_cleanup_errors=True)
    bench = Bench(Path(images.name) / "images", report, given.only, started + 60 * given.minutes)
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
        report.write(given.out, "templates")  # so that a run cut short leaves what it saw
    images.cleanup()
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
