"""Checks and times every baseline of every CUDA contract on one GPU.

    python bench/gpu/baselines.py --out DIR [--only CONTRACT ...] [--quick] [--tune]

For every contract at its performance shapes and at a decoder's: each available baseline against the float64 reference,
then all of them interleaved in CUDA graphs over input sets larger than twice the cache. Prints a table (µs, GB/s, share
of the read ceiling, times cuBLAS on the weight alone), writes ``baselines.json`` and ``baselines.log`` into DIR. With
``--tune`` also times the Triton projections' candidate tiles at the decoder's shapes and writes ``measured.py``, ready
to replace ``runtime/baselines/triton_kernels/measured.py``. What fails is a row and stops nothing; then exit status 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from bench.gpu.baseline_shapes import TUNED, decoder_shapes, shapes
from bench.gpu.baseline_warmup import Compilation, tuned, warm_up
from bench.gpu.report import Report
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.baselines import Baseline, UnsupportedShapeError, available_baselines
from runtime.baselines.triton_kernels.measured import MEASURED
from runtime.baselines.triton_kernels.tiles import Tiles, bucket, candidates
from runtime.device import cuda_device
from runtime.stopwatch import CudaStopwatch
from runtime.timing import Arm, Effort, Timing, time_interleaved
from validator.inputs import CallInputs, allocate_outputs, make_inputs, make_timing_inputs
from validator.references import reference

ROOT = Path(__file__).resolve().parents[2]
STORAGE = DType.BFLOAT16
EPS = 2.0**-8
# Errors of a few roundings of bfloat16, relative to a value or to the tensor's RMS, are right.
RIGHT = 6.0
# Read bandwidth measured on one NVIDIA H200 (TB/s): bench/results/h200-ceilings-2026-11-30.md.
CEILING = 4.49
EFFORT = Effort(relative_error=0.004, min_rounds=9, max_rounds=60, seconds=0.4)
TUNING = Effort(relative_error=0.01, min_rounds=5, max_rounds=15, seconds=0.6)
_WEIGHTS = ("w_qkv", "w_o", "w_gate_up", "w_down", "w")
_INPUTS = ("x", "attn")


def error_of(contract: Contract, dims: Mapping[str, int], baseline: Baseline) -> float:
    """Worst error over written elements, in eps relative to the value plus the tensor's RMS."""
    inputs = make_inputs(contract, dims, STORAGE, "normal", 1, "cuda")
    call = inputs.clone().with_tensors(allocate_outputs(contract, dims, STORAGE, "cuda"))
    baseline.prepare(contract, dims, STORAGE, call.tensors, call.scalars)()
    torch.cuda.synchronize()
    worst = 0.0
    for name, expected in reference(contract, dims, inputs).items():
        tensor = call.tensors[name]
        assert tensor is not None
        got, truth = expected.written(tensor).double(), expected.values.double()
        if expected.scores is not None:  # an index: how far its score is from the best
            got = expected.scores.gather(1, got.long()[:, None])[:, 0]
            truth = expected.scores.max(dim=1).values
        error = (got - truth).abs() / (truth.abs() + truth.square().mean().sqrt() + 1e-30) / EPS
        worst = max(worst, float(error.nan_to_num(nan=1e9).max()))
        before = inputs.tensors.get(name)
        if before is not None and expected.first_change(before, tensor) is not None:
            raise AssertionError(f"{name} changed outside what is written")
    return worst


def cublas_arm(sets: Sequence[CallInputs]) -> Arm | None:
    """The product with the contract's weight alone, where it has one."""
    calls = []
    for made in sets:
        found = [[made.tensors[n] for n in names if made.tensors.get(n) is not None] for names in (_INPUTS, _WEIGHTS)]
        if not all(found):
            return None
        x, weight = found[0][0], found[1][0]
        assert x is not None
        assert weight is not None
        if x.shape[1] != weight.shape[1]:
            return None
        calls.append(_product(x, weight.t(), torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device="cuda")))
    return Arm(tuple(calls))


def _product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.mm(x, weight, out=out)


def label(contract: Contract, dims: Mapping[str, int]) -> str:
    """The dims that tell shapes of one contract apart."""
    shown = ("num_tokens", "batch_size", "seq_len", "hidden_size", "in_features", "intermediate_size", "vocab_size")
    return " ".join(f"{n}={dims[n]}" for n in (*shown, "context_len") if n in dims and n in contract.dims)


def measure(
    contract: Contract, dims: Mapping[str, int], report: Report, watch: CudaStopwatch, cache_bytes: int
) -> None:
    """One shape: check each baseline, then time those that are right together."""
    right: list[Baseline] = []
    errors: dict[str, float] = {}
    for baseline in available_baselines(contract, Target.CUDA):
        try:
            errors[baseline.name] = error_of(contract, dims, baseline)
        except UnsupportedShapeError as error:
            report.say(f"{contract.id} {label(contract, dims)} {baseline.name}: {error}")
            continue
        except Exception:
            report.add(contract.id, f"{label(contract, dims)} {baseline.name}", _last_line(), ok=False)
            report.say(traceback.format_exc())
            continue
        if errors[baseline.name] > RIGHT:
            text = f"error of {errors[baseline.name]:.3g} eps"
            report.add(contract.id, f"{label(contract, dims)} {baseline.name}", text, ok=False)
        else:
            right.append(baseline)
    torch.cuda.empty_cache()
    sets = make_timing_inputs(contract, dims, STORAGE, "cuda", 2 * cache_bytes)
    arms = {b.name: Arm(tuple(b.prepare(contract, dims, STORAGE, s.tensors, s.scalars) for s in sets)) for b in right}
    product = cublas_arm(sets)
    if product is not None:
        arms["cublas"] = product
    _add_rows(contract, dims, report, time_interleaved(arms, watch, EFFORT), errors)


def _add_rows(
    contract: Contract,
    dims: Mapping[str, int],
    report: Report,
    timings: Mapping[str, Timing],
    errors: Mapping[str, float],
) -> None:
    moved = contract.bytes_moved(dims, STORAGE)
    product = timings.get("cublas")
    fastest = min((n for n in timings if n != "cublas"), key=lambda n: timings[n].median_us, default="")
    for name, timing in timings.items():
        gbps = moved / timing.median_us / 1e3
        text = f"{timing.median_us:9.2f} µs  {gbps:7.0f} GB/s  {gbps / 1e3 / CEILING:5.1%}"
        if product is not None:
            text += f"  {timing.median_us / product.median_us:5.2f}x cuBLAS"
        text += f"  error {errors[name]:.2f} eps" if name in errors else ""
        report.add(contract.id, f"{label(contract, dims)} {name}", text + ("  *" if name == fastest else ""))
        entry = {"contract": contract.id, "dims": dict(dims), "baseline": name, "us": timing.median_us, "gbps": gbps}
        entry |= {"interval_us": timing.interval_us, "bytes": moved, "error_eps": errors.get(name)}
        report.record.setdefault("timings", []).append(entry)


def tune(
    contract: Contract, dims: Mapping[str, int], report: Report, watch: CudaStopwatch, cache_bytes: int
) -> Tiles | None:
    """The fastest candidate tiles of a projection at one shape, all of them timed together."""
    sets = make_timing_inputs(contract, dims, STORAGE, "cuda", 2 * cache_bytes)
    arms, chosen = {}, {}
    for tiles in (None, *_tiles(contract.id, dims)):
        name = "table" if tiles is None else str(astuple(tiles))
        try:
            calls = tuple(tuned(contract.id)(dims, s.tensors, s.scalars, tiles) for s in sets)
            calls[0]()
            torch.cuda.synchronize()
        except Exception:  # more shared memory or registers than there are
            report.say(f"tune {contract.id} {label(contract, dims)} {name}: {_last_line()}")
            continue
        arms[name], chosen[name] = Arm(calls), tiles
    timings = time_interleaved(arms, watch, TUNING)
    ranked = sorted(timings, key=lambda name: timings[name].median_us)
    best = "   ".join(f"{name} {timings[name].median_us:.2f}" for name in ranked[:3])
    report.add(
        "tune", f"{contract.id} {label(contract, dims)}", f"{best}   (table {timings['table'].median_us:.2f}) µs"
    )
    return chosen[ranked[0]]


def _tiles(contract_id: str, dims: Mapping[str, int]) -> list[Tiles]:
    may_split = contract_id not in ("gated_mlp_up", "lm_head_argmax")
    return list(candidates(dims["num_tokens"], may_split=may_split))


def _key(contract: Contract, dims: Mapping[str, int]) -> tuple[str, int, int, int]:
    weight = next(t for t in contract.tensors if t.name in _WEIGHTS)
    rows, k = contract.shape_of(weight, dims)
    return contract.id, rows // 2 if contract.id == "gated_mlp_up" else rows, k, bucket(dims["num_tokens"])


def write_measured(found: Mapping[tuple[str, int, int, int], Tiles], path: Path) -> None:
    """A ``measured.py`` with what was found beside what it holds now."""
    kept = MEASURED | {key: astuple(tiles) for key, tiles in found.items()}
    lines = "".join(f"    {key!r}: {kept[key]!r},\n" for key in sorted(kept)).replace("'", '"')
    current = (ROOT / "runtime/baselines/triton_kernels/measured.py").read_text(encoding="utf-8")
    start = current.index("MEASURED:")
    path.write_text(
        current[:start] + "MEASURED: dict[tuple[str, int, int, int], tuple[int, ...]] = {\n" + lines + "}\n",
        encoding="utf-8",
    )


def _last_line() -> str:
    return traceback.format_exc().strip().splitlines()[-1][:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--only", nargs="*", help="contract ids")
    parser.add_argument("--quick", action="store_true", help="the contracts' own shapes, no torch.compile")
    parser.add_argument("--tune", action="store_true", help="also time candidate tiles")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    started, report, watch, device = time.monotonic(), Report(), CudaStopwatch(), cuda_device()
    library = load_library(library_root(None)).contracts
    contracts = [c for c in library.values() if not arguments.only or c.id in arguments.only]
    report.record |= {"hardware": device.name, "driver": device.driver, "versions": dict(device.versions)}
    work = [(c, dims) for c in contracts for dims in (c.sweep.performance if arguments.quick else shapes(c))]
    tuning = [(c, d) for c in contracts if c.id in TUNED for d in decoder_shapes(c.id)] if arguments.tune else []
    if importlib.util.find_spec("triton") is None:
        report.add("set-up", "triton", "not installed: pip install triton", ok=False)
    else:
        names = ("triton",) if arguments.quick else ("triton", "torch_compiled")
        tasks = [
            Compilation(c.id, dims, b.name)
            for c, dims in work
            for b in available_baselines(c, Target.CUDA)
            if b.name.startswith(names)
        ]
        tasks += [Compilation(c.id, d, f"triton_{c.id}", tiles) for c, d in tuning for tiles in _tiles(c.id, d)]
        for failure in warm_up(tasks):
            report.say(f"compiling {failure}")
        report.say(f"compiled {len(tasks)} calls in {time.monotonic() - started:.0f} s")
    for contract, dims in work:
        try:
            measure(contract, dims, report, watch, device.cache_bytes)
        except Exception:
            report.add(contract.id, label(contract, dims), _last_line(), ok=False)
            report.say(traceback.format_exc())
    found = {}
    for contract, dims in tuning:
        try:
            tiles = tune(contract, dims, report, watch, device.cache_bytes)
        except Exception:
            report.add("tune", f"{contract.id} {label(contract, dims)}", _last_line(), ok=False)
            continue
        if tiles is not None:
            found[_key(contract, dims)] = tiles
    if found:
        write_measured(found, arguments.out / "measured.py")
    report.record["seconds"] = time.monotonic() - started
    report.write(arguments.out, "baselines")
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
