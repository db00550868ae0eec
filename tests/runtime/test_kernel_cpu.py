"""The whole path on the processor: compile, load, bind, run, and be right."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kb.candidate import Candidate
from kb.dtype import DType, Target
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device, cpu_device
from runtime.errors import CompileError, LaunchError, LoadError
from runtime.kernel import Compiled, Kernel, compile_candidate, full_source, load_kernel
from tests.runtime.kernels_on_hand import NORM_CPU, NORM_CPU_TWO_STEPS, candidate, contracts

CONTRACT = contracts()["residual_rmsnorm"]
TORCH = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16, DType.FLOAT32: torch.float32}
# Relative, of the whole output: one rounding of the storage type, and float32 sums in order.
TOLERANCE = {DType.BFLOAT16: 2**-8, DType.FLOAT16: 2**-11, DType.FLOAT32: 1e-6}
DIMS = {"num_tokens": 5, "hidden_size": 1032, "has_residual": 1}
EPS = {"eps": 1e-6}


def norm(source: str = NORM_CPU, *entries: str, **workspace: object) -> Candidate:
    launches = [{"entry": e} for e in entries or ("norm",)]
    return candidate("residual_rmsnorm", Target.CPU, source, *launches, **workspace)


def load(
    made: Candidate, images: CompileCache, dims: Mapping[str, int] = DIMS, storage: DType = DType.BFLOAT16
) -> Kernel:
    return load_kernel(made, CONTRACT, dims, storage, cache=images)


def tensors(dims: Mapping[str, int] = DIMS, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    shape = (dims["num_tokens"], dims["hidden_size"])
    made: dict[str, torch.Tensor | None] = {
        "x": torch.randn(shape, generator=generator).to(dtype),
        "residual": torch.randn(shape, generator=generator).to(dtype) if dims["has_residual"] else None,
        "weight": torch.randn(shape[1], generator=generator).to(dtype),
        "out": torch.full(shape, float("nan"), dtype=dtype),
    }
    return made


def expected(given: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    x, residual, weight = given["x"], given["residual"], given["weight"]
    assert x is not None
    assert weight is not None
    s = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    scale = torch.rsqrt(s.double().square().mean(-1, keepdim=True) + 1e-6)
    return (s.double() * scale).to(x.dtype).double() * weight.double()


def out_of(given: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    out = given["out"]
    assert out is not None
    return out


def error_of(given: Mapping[str, torch.Tensor | None], truth: torch.Tensor) -> float:
    return float((out_of(given).double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("has_residual", [0, 1])
@pytest.mark.parametrize("storage", list(TORCH))
def test_a_kernel_computes_what_the_contract_says(storage: DType, has_residual: int, images: CompileCache) -> None:
    dims = {**DIMS, "has_residual": has_residual}
    given = tensors(dims, TORCH[storage])
    truth, residual = expected(given), given["residual"]
    before = None if residual is None else residual.clone()
    load(norm(), images, dims, storage).bind(given, EPS)()
    assert error_of(given, truth) < TOLERANCE[storage]
    if residual is not None and before is not None:
        x = given["x"]
        assert x is not None
        assert torch.equal(residual, (x.float() + before.float()).to(residual.dtype))


def test_a_call_can_be_repeated_and_sees_new_contents_of_the_same_memory(images: CompileCache) -> None:
    dims = {**DIMS, "has_residual": 0}
    given = tensors(dims)
    call = load(norm(), images, dims).bind(given, EPS)
    call()
    first = out_of(given).clone()
    call()
    assert torch.equal(out_of(given), first)
    x = given["x"]
    assert x is not None
    x.neg_()
    call()
    assert torch.equal(out_of(given), -first)


def test_entries_run_in_order_and_talk_through_the_workspace(images: CompileCache) -> None:
    dims = {**DIMS, "has_residual": 0}
    kernel = load(norm(NORM_CPU_TWO_STEPS, "sums", "rows", bytes="num_tokens * 4"), images, dims)
    assert kernel.workspace_bytes == 20
    given = tensors(dims)
    call = kernel.bind(given, EPS)
    call()
    assert error_of(given, expected(given)) < TOLERANCE[DType.BFLOAT16]
    assert call.workspace is not None
    assert call.workspace.data_ptr() % 128 == 0


def test_a_workspace_zeroed_once_is_zero_and_an_unused_one_is_a_null_pointer(images: CompileCache) -> None:
    arguments = "(const T* x, T* residual, const T* weight, T* out, float eps, void* workspace)"
    counting = f"""extern "C" void norm{arguments} {{
  for (int i = 0; i < num_tokens * hidden_size; ++i) out[i] = from_float<T>(1.f);
  if (workspace) out[0] = from_float<T>(float(++*static_cast<int*>(workspace)));
}}
"""
    given = tensors()
    call = load(norm(counting, bytes="4", zeroed="once"), images).bind(given, EPS)
    for count in (1.0, 2.0):
        call()
        assert out_of(given)[0, 0].item() == count
    call = load(norm(counting), images).bind(given, EPS)
    assert call.workspace is None
    call()
    assert out_of(given)[0, 0].item() == 1.0


def test_calls_may_share_a_workspace_the_caller_brings(images: CompileCache) -> None:
    dims = {**DIMS, "has_residual": 0}
    kernel = load(norm(NORM_CPU_TWO_STEPS, "sums", "rows", bytes="num_tokens * 4"), images, dims)
    shared = kernel.new_workspace()
    assert shared is not None
    first, second = (kernel.bind(tensors(dims), EPS, workspace=shared) for _ in range(2))
    assert first.workspace is second.workspace is shared
    with pytest.raises(LaunchError, match="20 contiguous bytes are needed"):
        kernel.bind(tensors(dims), EPS, workspace=shared[:16])
    with pytest.raises(LaunchError, match="multiple of 128"):
        kernel.bind(tensors(dims), EPS, workspace=torch.zeros(512, dtype=torch.uint8)[1:])


def test_a_launch_that_does_not_apply_is_left_out(images: CompileCache) -> None:
    made = candidate(
        "residual_rmsnorm",
        Target.CPU,
        NORM_CPU + NORM_CPU.replace("void norm", "void many"),
        {"entry": "norm", "when": "num_tokens <= 4"},
        {"entry": "many", "when": "num_tokens > 4"},
    )
    assert [launch.entry for launch in load(made, images).launches] == ["many"]
    none = candidate("residual_rmsnorm", Target.CPU, NORM_CPU, {"entry": "norm", "when": "num_tokens > 100"})
    with pytest.raises(LoadError, match="no launch applies"):
        load(none, images)


def test_runtime_dims_arrive_as_arguments_and_scalars_as_float32(images: CompileCache) -> None:
    source = """extern "C" void turn(T* q, T* k, const float* cos_sin, const int* positions, int max_positions, void*) {
  q[0] = from_float<T>(float(max_positions) + cos_sin[1] + float(positions[0]));
}
"""
    contract = contracts()["rope"]
    dims = {"num_tokens": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "rotary_dim": 2, "rope_interleaved": 0}
    results = []
    for rows in (32, 64):
        made = candidate("rope", Target.CPU, source, {"entry": "turn"})
        kernel = load_kernel(made, contract, {**dims, "max_positions": rows}, DType.FLOAT32, cache=images)
        q, k = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
        table, positions = torch.full((rows, 2), 0.5), torch.tensor([3], dtype=torch.int32)
        kernel.bind({"q": q, "k": k, "cos_sin": table, "positions": positions}, {})()
        results.append((q[0, 0, 0].item(), kernel.image.path))
    assert [value for value, _ in results] == [35.5, 67.5]
    assert results[0][1] == results[1][1], "a runtime dim must not cost a compilation"


def test_the_number_of_threads_is_the_devices_on_every_calling_thread(images: CompileCache) -> None:
    arguments = "(const T* x, T* residual, const T* weight, T* out, float eps, void* workspace)"
    source = f'extern "C" void norm{arguments} {{ out[0] = from_float<T>(100 * num_sms + omp_get_max_threads()); }}\n'
    given = tensors(dtype=torch.float32)
    device = replace(cpu_device(), num_sms=1)
    kernel = load_kernel(norm(source), CONTRACT, DIMS, DType.FLOAT32, cache=images, device=device)
    call = kernel.bind(given, EPS)
    seen = []
    for run in (call, lambda: _on_another_thread(call)):
        run()
        seen.append(out_of(given)[0, 0].item())
    assert seen == [101.0, 101.0]


def _on_another_thread(call: object) -> None:
    thread = threading.Thread(target=call)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_the_tensors_live_as_long_as_the_call(images: CompileCache) -> None:
    call = load(norm(), images).bind(tensors(), EPS)
    kept = call.tensors["out"]
    call()
    assert kept is not None
    assert not kept.isnan().any()


def test_a_compiled_candidate_travels_between_processes(images: CompileCache) -> None:
    compiled = compile_candidate(norm(), CONTRACT, DIMS, DType.BFLOAT16, cache=images)
    arrived: Compiled = pickle.loads(pickle.dumps(compiled))
    assert arrived == compiled
    given = tensors()
    truth = expected(given)
    Kernel(arrived).bind(given, EPS)()
    assert error_of(given, truth) < TOLERANCE[DType.BFLOAT16]


def test_what_the_compiler_reads_is_the_prelude_and_then_the_source_from_line_1() -> None:
    made = candidate("residual_rmsnorm", Target.CPU, "first line\nsecond", {"entry": "norm"})
    text = full_source(made, CONTRACT, DIMS, DType.FLOAT16, replace(cpu_device(), num_sms=3))
    assert text.endswith('#line 1 "kernel.cpp"\nfirst line\nsecond\n')
    assert "constexpr int hidden_size = 1032;" in text
    assert "constexpr int num_sms = 3;" in text
    assert "using T = float16;" in text


def test_a_source_that_does_not_compile_raises_with_its_lines(images: CompileCache) -> None:
    with pytest.raises(CompileError) as caught:
        load(norm(NORM_CPU.replace("sum += f * f", "sum += g * f")), images)
    assert caught.value.errors[0].line == 15
    assert "g" in caught.value.errors[0].text


def test_an_entry_without_c_linkage_is_not_found(images: CompileCache) -> None:
    with pytest.raises(LoadError, match="no entry 'norm'"):
        load(norm(NORM_CPU.replace('extern "C" ', "")), images)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"num_tokens": 5, "hidden_size": 1032}, "'has_residual' has no value"),
        ({**DIMS, "has_residual": 2}, "has_residual = 2 is outside 0..1"),
        ({**DIMS, "num_tokens": 0}, "num_tokens = 0 is outside"),
        ({**DIMS, "hidden_size": 1033}, "constraint 'hidden_size % 8 == 0' does not hold"),
    ],
)
def test_dims_the_contract_does_not_allow_are_refused(
    dims: Mapping[str, int], message: str, images: CompileCache
) -> None:
    with pytest.raises(LoadError, match=message.replace("%", r"\%")):
        load(norm(), images, dims)


def test_a_candidate_is_held_to_its_contract_and_target(images: CompileCache) -> None:
    with pytest.raises(LoadError, match="for contract residual_rmsnorm, not rope"):
        load_kernel(norm(), contracts()["rope"], DIMS, DType.BFLOAT16, cache=images)
    with pytest.raises(LoadError, match="the candidate is for cpu, the device is cuda"):
        load_kernel(norm(), CONTRACT, DIMS, DType.BFLOAT16, cache=images, device=assumed_cuda_device("sm_90"))
