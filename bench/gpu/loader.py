"""Shows on one GPU that kernels load, launch, capture and time as the runtime promises.

    python bench/gpu/loader.py --out DIR

Writes ``loader.json`` and ``loader.log`` into DIR and prints a table last. Every section runs whatever happened to the
others. Takes about a minute. Exit status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import timeit
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from bench.gpu.launch_kinds import CASES, CONTRACT, Case
from bench.gpu.report import Report
from kb.candidate import Candidate, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.bandwidth import measure_bandwidth
from runtime.clocks import read_clocks
from runtime.compile_cache import CompileCache
from runtime.compile_cuda import cuda_headers, nvrtc_version
from runtime.device import DeviceInfo, cuda_device
from runtime.errors import LoadError, RuntimeFailure
from runtime.kernel import Kernel, load_kernel
from runtime.stopwatch import CudaStopwatch
from runtime.timing import Arm, Effort, compare, input_sets, shape_timing, time_interleaved

_TORCH = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16, DType.FLOAT32: torch.float32}

# cuBLAS bf16 GEMV, M = 1, measured earlier on one NVIDIA H200 (rows, columns, microseconds).
_KNOWN_GEMV = ((6144, 2560, 11.9), (2560, 4096, 10.4), (19456, 2560, 29.0), (2560, 9728, 17.8), (151936, 2560, 188.7))

# A warp a row, 16-byte loads: enough to see what the harness says about a kernel that streams weights.
_GEMV = """
extern "C" __global__ void gemv(const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual,
                                void* __restrict__ workspace) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= hidden_size) return;
  const uint4* weights = reinterpret_cast<const uint4*>(w_down + (long long)row * intermediate_size);
  const uint4* inputs = reinterpret_cast<const uint4*>(x);
  float sum = 0.f;
  #pragma unroll 8
  for (int i = lane; i < intermediate_size / 8; i += 32) {
    const uint4 a = __ldcs(weights + i), b = inputs[i];
    const __nv_bfloat162* p = reinterpret_cast<const __nv_bfloat162*>(&a);
    const __nv_bfloat162* q = reinterpret_cast<const __nv_bfloat162*>(&b);
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 u = __bfloat1622float2(p[k]), v = __bfloat1622float2(q[k]);
      sum += u.x * v.x + u.y * v.y;
    }
  }
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) residual[row] = T(float(residual[row]) + float(T(sum)));
}
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every section needs."""

    device: DeviceInfo
    contracts: dict[str, Contract]
    cache: CompileCache
    report: Report

    def load(self, case: Case) -> Kernel:
        """The case's kernel, loaded."""
        contract = self.contracts[CONTRACT]
        return load_kernel(case.candidate(), contract, case.dims, case.storage, cache=self.cache, device=self.device)


def environment(bench: Bench) -> None:
    """Names and versions."""
    version, device = nvrtc_version(), bench.device
    headers = cuda_headers(version)
    bench.report.record["device"] = asdict(device)
    bench.report.record["clocks_before"] = dict(read_clocks(Target.CUDA, device.uuid))
    bench.report.add("device", device.name, f"{device.arch}, {device.num_sms} SMs, driver {device.driver}")
    where = f"{headers.root} ({headers.version[0]}.{headers.version[1]})"
    complete = "complete" if not headers.missing else f"without {', '.join(headers.missing)}"
    bench.report.add("device", f"NVRTC {version[0]}.{version[1]}", f"headers {where}, {complete}")
    import cuda.bindings
    import cupy

    bench.report.add("device", "packages", f"cupy {cupy.__version__}, cuda-bindings {cuda.bindings.__version__}")


def launch_kinds(bench: Bench) -> None:
    """Every kind of launch: right, twice in a row, under graph replay, and on another stream."""
    for case in CASES:
        if bench.device.capability < case.min_capability:
            bench.report.add("launch", case.name, f"not on {bench.device.arch}")
            continue
        try:
            bench.report.add("launch", case.name, _try_case(bench, case))
        except Exception as error:
            bench.report.say(traceback.format_exc())
            bench.report.add("launch", case.name, f"{type(error).__name__}: {error}", ok=False)


def _try_case(bench: Bench, case: Case) -> str:
    started = time.perf_counter()
    kernel = bench.load(case)
    loaded = time.perf_counter() - started
    tensors = _norm_tensors(case, seed=1)
    call = kernel.bind(tensors, {"eps": 1e-6})
    worst = 0.0
    for seed in (2, 3):
        worst = max(worst, _run_and_check(tensors, call, case, seed))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (4, 5):
        worst = max(worst, _run_and_check(tensors, graph.replay, case, seed))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        worst = max(worst, _run_and_check(tensors, call, case, 6))
    torch.cuda.synchronize()
    limit = {DType.BFLOAT16: 4e-3, DType.FLOAT16: 5e-4, DType.FLOAT32: 5e-6}[case.storage]
    if not worst <= limit:
        raise AssertionError(f"relative error {worst:.3g} of a row, {limit:.3g} allowed")
    needs = next(iter(kernel.resources.values()))
    return f"error {worst:.1e}, {needs.registers} registers, compile and load {loaded * 1e3:.0f} ms"


def _norm_tensors(case: Case, seed: int) -> dict[str, torch.Tensor | None]:
    rows, width = case.dims["num_tokens"], case.dims["hidden_size"]
    generator = torch.Generator("cuda").manual_seed(seed)
    make = partial(torch.randn, generator=generator, device="cuda")
    dtype = _TORCH[case.storage]
    residual = make(rows, width).to(dtype) if case.dims["has_residual"] else None
    weight, out = make(width).to(dtype), torch.empty(rows, width, device="cuda", dtype=dtype)
    return {"x": make(rows, width).to(dtype), "residual": residual, "weight": weight, "out": out}


def _run_and_check(tensors: dict[str, torch.Tensor | None], run: Callable[[], object], case: Case, seed: int) -> float:
    """Fresh inputs in the same memory, a poisoned output; the worst row's relative error against float64."""
    fresh = _norm_tensors(case, seed)
    for name, tensor in tensors.items():
        if tensor is not None:
            source = fresh[name]
            assert source is not None
            tensor.copy_(source)
    out, x, weight, residual = (tensors[n] for n in ("out", "x", "weight", "residual"))
    assert out is not None
    assert x is not None
    assert weight is not None
    out.fill_(float("nan"))
    s = x.clone() if residual is None else (x.float() + residual.float()).to(x.dtype)
    run()
    torch.cuda.current_stream().synchronize()
    if residual is not None and not torch.equal(residual, s):
        return float("inf")
    scale = torch.rsqrt(s.double().square().mean(-1, keepdim=True) + 1e-6)
    truth = (s.double() * scale).to(x.dtype).double() * weight.double()
    error = ((out.double() - truth).norm(dim=-1) / truth.norm(dim=-1)).max()
    return float(error) if torch.isfinite(out).all() else float("inf")


def refusals(bench: Bench) -> None:
    """Launches the device cannot run are refused at loading, with a reason."""
    cooperative = next(c for c in CASES if c.name == "cooperative")
    plain = CASES[0]
    wide = {**cooperative.launches[0], "grid": ("num_sms * 64", "1", "1")}
    tries = {
        "cooperative grid too large": replace(
            cooperative, launches=(wide,), workspace={"bytes": "num_tokens * num_sms * 64 * 4"}
        ),
        "shared memory too large": replace(plain, launches=({**plain.launches[0], "shared_bytes": "232400"},)),
        "missing entry": replace(plain, launches=({**plain.launches[0], "entry": "absent"},)),
    }
    for name, case in tries.items():
        try:
            bench.load(case)
            bench.report.add("refusal", name, "was loaded", ok=False)
        except LoadError as error:
            bench.report.add("refusal", name, str(error))


def host_overhead(bench: Bench) -> None:
    """What one call costs the host."""
    kernel = bench.load(CASES[0])
    call = kernel.bind(_norm_tensors(CASES[0], 1), {"eps": 1e-6})
    call()
    torch.cuda.synchronize()
    count = 500  # fewer than the launch queue holds: beyond that the host waits for the device
    best = min(_enqueue_us(call, count) for _ in range(5))
    x = torch.zeros(8, device="cuda")
    other = min(_enqueue_us(partial(x.add_, 1), count) for _ in range(5))
    bench.report.record["host_us"] = {"bound_call": best, "torch_add": other}
    bench.report.add("host", "one call", f"{best:.2f} µs (torch's add_ {other:.2f} µs)")


def _enqueue_us(call: Callable[[], object], count: int) -> float:
    torch.cuda.synchronize()
    taken = timeit.timeit(call, number=count) / count * 1e6
    torch.cuda.synchronize()
    return taken


def bandwidths(bench: Bench) -> None:
    """Read and copy."""
    found = measure_bandwidth(bench.device, bench.cache)
    bench.report.record["bandwidth_gbps"] = dict(found.methods)
    for name, value in found.methods.items():
        bench.report.add("bandwidth", name, f"{value / 1e3:.2f} TB/s")


def same_against_itself(bench: Bench) -> None:
    """A/A is matched, twice the work is slower, and no work is impossible."""
    best = bench.report.record.get("bandwidth_gbps", {})
    bandwidth = max(best.values(), default=4000.0)
    shape = {"num_tokens": 1, "hidden_size": 2560, "intermediate_size": 9728}
    contract = bench.contracts["gated_mlp_down"]
    moved = contract.bytes_moved(shape, DType.BFLOAT16)
    count = input_sets(moved, bench.device.cache_bytes, memory_bytes=bench.device.memory_bytes)
    plan = LaunchPlan.model_validate(
        {"launches": [{"entry": "gemv", "grid": ["ceil_div(hidden_size, 4)", "1", "1"], "block": ["128", "1", "1"]}]}
    )

    def arm(source: str, repeat: int = 1) -> Arm:
        candidate = Candidate(contract=contract.id, target=Target.CUDA, source=source, plan=plan)
        kernel = load_kernel(candidate, contract, shape, DType.BFLOAT16, cache=bench.cache, device=bench.device)
        calls = [kernel.bind(tensors, {}) for tensors in sets]
        return Arm(tuple(partial(_repeat, call, repeat) for call in calls))

    sets = [_gemv_tensors(shape, i) for i in range(count)]
    _check_gemv(bench, contract, shape, plan, sets[0])
    empty = _GEMV.replace("if (row >= hidden_size) return;", "if (row >= 0) return;")
    library = Arm(tuple(partial(_library_gemv, t) for t in sets))
    watch = CudaStopwatch()
    bench.report.add("timing", "overhead of a replay", f"{watch.overhead_us:.2f} µs")
    cases = {"A/A": (arm(_GEMV), "matched"), "twice the work": (arm(_GEMV, 2), "slower")}
    for number in range(3):
        for name, (other, wanted) in cases.items():
            started = time.perf_counter()
            timings = time_interleaved({"a": other, "b": arm(_GEMV)}, watch, Effort(seconds=2.0))
            result = compare(timings["a"], timings["b"])
            low, high = result.ratio_interval
            text = f"{result.comparison.value}, ratio {result.ratio:.4f} [{low:.4f}, {high:.4f}]"
            rounds = f"{len(timings['a'].samples_us)} rounds, {time.perf_counter() - started:.1f} s"
            ok = result.comparison.value == wanted
            bench.report.add("timing", f"{name} {number + 1}", f"{text}, {rounds}", ok=ok)
    arms = {"candidate": arm(_GEMV), "torch": library}
    timings = time_interleaved(arms, watch)
    record = shape_timing(
        timings, "candidate", dims=shape, dtype=DType.BFLOAT16, bytes_moved=moved, bandwidth_gbps=bandwidth
    )
    bench.report.record["gemv_record"] = record.model_dump(mode="json")
    text = f"{record.candidate_us:.2f} µs against torch's {record.baseline_us:.2f} ({record.comparison.value})"
    bench.report.add("timing", "plain GEMV", f"{text}, {record.bandwidth_share:.0%} of bandwidth, {count} sets")
    timings = time_interleaved({"candidate": arm(empty), "torch": library}, watch, Effort(seconds=1.0))
    record = shape_timing(
        timings, "candidate", dims=shape, dtype=DType.BFLOAT16, bytes_moved=moved, bandwidth_gbps=bandwidth
    )
    ok = record.comparison.value == "impossible"
    text = f"{record.candidate_us:.2f} µs, floor {record.floor_us:.2f}: {record.comparison.value}"
    bench.report.add("timing", "no work at all", text, ok=ok)


def _gemv_tensors(shape: dict[str, int], seed: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator("cuda").manual_seed(seed)
    make = partial(torch.randn, generator=generator, device="cuda", dtype=torch.bfloat16)
    rows, columns = shape["hidden_size"], shape["intermediate_size"]
    weights = make(rows, columns) / columns**0.5
    return {"x": make(1, columns), "w_down": weights, "residual": make(1, rows)}


def _check_gemv(
    bench: Bench, contract: Contract, shape: dict[str, int], plan: LaunchPlan, tensors: dict[str, torch.Tensor | None]
) -> None:
    candidate = Candidate(contract=contract.id, target=Target.CUDA, source=_GEMV, plan=plan)
    kernel = load_kernel(candidate, contract, shape, DType.BFLOAT16, cache=bench.cache, device=bench.device)
    x, weights, residual = tensors["x"], tensors["w_down"], tensors["residual"]
    assert x is not None
    assert weights is not None
    assert residual is not None
    truth = residual.double() + (x.double() @ weights.double().T).to(torch.bfloat16).double()
    kernel.bind(tensors, {})()
    error = float((residual.double() - truth).norm() / truth.norm())
    bench.report.add("timing", "GEMV is right", f"relative error {error:.1e}", ok=error < 1e-2)


def _library_gemv(tensors: dict[str, Any]) -> None:
    tensors["residual"].add_(torch.nn.functional.linear(tensors["x"], tensors["w_down"]))


def _repeat(call: Callable[[], None], count: int) -> None:
    for _ in range(count):
        call()


def known_gemv(bench: Bench) -> None:
    """cuBLAS' GEMV through the harness, beside what was measured before by other means."""
    watch = CudaStopwatch()
    found = {}
    for rows, columns, known in _KNOWN_GEMV:
        count = input_sets(rows * columns * 2, bench.device.cache_bytes, memory_bytes=bench.device.memory_bytes)
        weights = [torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        x = torch.randn(1, columns, device="cuda", dtype=torch.bfloat16)
        arm = Arm(tuple(partial(torch.nn.functional.linear, x, w) for w in weights))
        timing = time_interleaved({"cublas": arm}, watch, Effort(seconds=1.0))["cublas"]
        rate = rows * columns * 2 / timing.median_us / 1e6
        found[f"{rows}x{columns}"] = {"us": timing.median_us, "known_us": known}
        text = f"{timing.median_us:.1f} µs ({rate:.2f} TB/s); measured before {known} µs"
        bench.report.add("cuBLAS", f"{rows}×{columns}", text)
        del weights, arm
    bench.report.record["cublas_gemv"] = found


# A kernel that faults takes the process's device context with it, so what could fault comes last.
SECTIONS = (environment, bandwidths, known_gemv, host_overhead, same_against_itself, refusals, launch_kinds)


def main() -> int:
    """Run all sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    report, started = Report(), time.perf_counter()
    report.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory() as images:
        bench = Bench(cuda_device(), dict(load_library(library_root()).contracts), CompileCache(Path(images)), report)
        for section in SECTIONS:
            begun = time.perf_counter()
            try:
                section(bench)
            except (Exception, RuntimeFailure) as error:
                report.say(traceback.format_exc())
                report.add(section.__name__, "section", f"{type(error).__name__}: {error}", ok=False)
            report.say(f"-- {section.__name__}: {time.perf_counter() - begun:.1f} s")
        report.record["clocks_after"] = dict(read_clocks(Target.CUDA, bench.device.uuid))
    report.record["seconds"] = time.perf_counter() - started
    report.write(folder, "loader")
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
