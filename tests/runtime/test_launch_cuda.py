from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import pytest
import torch

from bench.gpu.launch_kinds import CASES, Case
from kb.candidate import ResolvedLaunch
from kb.dtype import DType
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from runtime.errors import LaunchError, LoadError
from runtime.kernel import Kernel, load_kernel
from runtime.launch_cuda import CudaCall, launch_config
from runtime.stopwatch import CudaStopwatch
from runtime.timing import Arm, Effort, compare, time_interleaved
from tests.runtime.kernels_on_hand import contracts

CONTRACT = contracts()["residual_rmsnorm"]
TORCH = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16, DType.FLOAT32: torch.float32}
TOLERANCE = {DType.BFLOAT16: 4e-3, DType.FLOAT16: 5e-4, DType.FLOAT32: 5e-6}


def resolved(**changes: Any) -> ResolvedLaunch:
    parts: dict[str, Any] = {
        "entry": "k",
        "grid": (6, 2, 1),
        "block": (128, 1, 1),
        "shared_bytes": 1024,
        "cluster": (1, 1, 1),
        "cooperative": False,
        "programmatic_dependent": False,
    }
    return ResolvedLaunch(**parts | changes)


def attributes(config: Any) -> list[str]:
    from cuda.bindings import driver

    return [driver.CUlaunchAttributeID(a.id).name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for a in config.attrs]


def test_a_plain_launch_has_its_sizes_and_no_attributes() -> None:
    config = launch_config(resolved(), assumed_cuda_device("sm_90"))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (6, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert (config.sharedMemBytes, config.numAttrs) == (1024, 0)


def test_attributes_are_those_the_plan_asks_for() -> None:
    launch = resolved(cluster=(2, 1, 1), cooperative=True, programmatic_dependent=True)
    config = launch_config(launch, assumed_cuda_device("sm_90"))
    assert attributes(config) == ["CLUSTER_DIMENSION", "COOPERATIVE", "PROGRAMMATIC_STREAM_SERIALIZATION"]
    assert config.numAttrs == 3
    cluster = config.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    assert config.attrs[1].value.cooperative == 1
    assert config.attrs[2].value.programmaticStreamSerializationAllowed == 1


def test_a_dependent_launch_is_an_ordinary_one_before_sm_90() -> None:
    config = launch_config(resolved(programmatic_dependent=True), assumed_cuda_device("sm_80"))
    assert attributes(config) == []


class FakeDriver:
    """cuda-bindings' driver as far as a call uses it: every launch answers with the next of ``answers``."""

    def __init__(self, *answers: str) -> None:
        from cuda.bindings import driver

        self.CUresult, self.CUstream = driver.CUresult, driver.CUstream
        self.answers = list(answers)
        self.launched: list[tuple[int, str, list[int | None]]] = []

    def cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> tuple[Any]:  # noqa: N802
        packed = (ctypes.c_void_p * 2).from_address(parameters)
        values = [ctypes.c_int32.from_address(p or 0).value for p in packed]
        self.launched.append((int(config.hStream), function, values))
        return (getattr(self.CUresult, self.answers.pop(0) if self.answers else "CUDA_SUCCESS"),)


def call_on(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, streams: list[int]) -> CudaCall:
    """A call of two launches on the streams that torch is said to have current, one a call."""
    configs = [launch_config(resolved(), assumed_cuda_device("sm_90")) for _ in range(2)]
    monkeypatch.setattr("runtime.launch_cuda._driver", lambda: driver)
    monkeypatch.setattr("runtime.launch_cuda._raw_stream", lambda: lambda device: streams.pop(0))
    steps = [(configs[0], "first function", "first"), (configs[1], "second function", "second")]
    return CudaCall(steps, (ctypes.c_int32(5), ctypes.c_int32(6)), 0, {}, None, module=None)


def test_a_call_launches_in_order_with_its_arguments_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    call = call_on(driver, monkeypatch, [0, 64, 64, 0])
    for _ in range(4):
        call()
    assert [stream for stream, _, _ in driver.launched] == [0, 0, 64, 64, 64, 64, 0, 0]
    assert [function for _, function, _ in driver.launched[:2]] == ["first function", "second function"]
    assert all(values == [5, 6] for _, _, values in driver.launched)


def test_a_refused_launch_names_its_entry_and_the_drivers_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver("CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(LaunchError, match=r"second: the driver refused the launch: CUDA_ERROR_INVALID_VALUE"):
        call_on(driver, monkeypatch, [0])()


def test_a_thread_without_a_context_is_given_one_and_the_launch_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    driver = FakeDriver("CUDA_ERROR_INVALID_CONTEXT")
    call_on(driver, monkeypatch, [0])()
    assert made_current == [0]
    assert [function for _, function, _ in driver.launched] == ["first function"] * 2 + ["second function"]


def norm_inputs(case: Case, seed: int) -> dict[str, torch.Tensor | None]:
    rows, width = case.dims["num_tokens"], case.dims["hidden_size"]
    make = partial(torch.randn, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    dtype = TORCH[case.storage]
    return {
        "x": make(rows, width).to(dtype),
        "residual": make(rows, width).to(dtype) if case.dims["has_residual"] else None,
        "weight": make(width).to(dtype),
        "out": torch.full((rows, width), float("nan"), device="cuda", dtype=dtype),
    }


def load(case: Case, images: CompileCache) -> Kernel:
    kernel = load_kernel(case.candidate(), CONTRACT, case.dims, case.storage, cache=images)
    if kernel.device.capability < case.min_capability:
        pytest.skip(f"not on {kernel.device.arch}")
    return kernel


def refill(tensors: dict[str, torch.Tensor | None], case: Case, seed: int) -> torch.Tensor:
    """New inputs in the same memory, a poisoned output; what the output must become, in float64."""
    for name, fresh in norm_inputs(case, seed).items():
        held = tensors[name]
        if held is not None and fresh is not None:
            held.copy_(fresh)
    x, residual, weight = tensors["x"], tensors["residual"], tensors["weight"]
    assert x is not None
    assert weight is not None
    s = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    scale = torch.rsqrt(s.double().square().mean(-1, keepdim=True) + 1e-6)
    return (s.double() * scale).to(x.dtype).double() * weight.double()


def error_of(tensors: dict[str, torch.Tensor | None], truth: torch.Tensor) -> float:
    torch.cuda.synchronize()
    out = tensors["out"]
    assert out is not None
    return float(((out.double() - truth).norm(dim=-1) / truth.norm(dim=-1)).max())


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_kind_of_launch_is_right_eagerly_in_a_graph_and_on_another_stream(
    case: Case, images: CompileCache
) -> None:
    tensors = norm_inputs(case, 0)
    call = load(case, images).bind(tensors, {"eps": 1e-6})
    for seed in (1, 2):
        truth = refill(tensors, case, seed)
        call()
        assert error_of(tensors, truth) < TOLERANCE[case.storage]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (3, 4):
        truth = refill(tensors, case, seed)
        graph.replay()
        assert error_of(tensors, truth) < TOLERANCE[case.storage]
    truth = refill(tensors, case, 5)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    assert error_of(tensors, truth) < TOLERANCE[case.storage]


@pytest.mark.gpu
def test_a_loaded_kernel_knows_its_registers_and_threads(images: CompileCache) -> None:
    (needs,) = load(CASES[0], images).resources.values()
    assert needs.registers > 0
    assert needs.max_threads == 1024
    assert not needs.spills


@pytest.mark.gpu
def test_a_cooperative_grid_that_cannot_be_resident_is_refused(images: CompileCache) -> None:
    from dataclasses import replace

    case = next(c for c in CASES if c.name == "cooperative")
    wide = {**case.launches[0], "grid": ("num_sms * 64", "1", "1")}
    with pytest.raises(LoadError, match="a cooperative grid of"):
        load(replace(case, launches=(wide,), workspace={"bytes": "num_tokens * num_sms * 256"}), images)


@pytest.mark.gpu
def test_a_kernel_against_itself_is_matched_on_the_device(images: CompileCache) -> None:
    kernel = load(CASES[0], images)
    calls = tuple(kernel.bind(norm_inputs(CASES[0], seed), {"eps": 1e-6}) for seed in range(4))
    timings = time_interleaved({"a": Arm(calls), "b": Arm(calls)}, CudaStopwatch(), Effort(seconds=1.0))
    assert compare(timings["a"], timings["b"]).comparison.value == "matched"
