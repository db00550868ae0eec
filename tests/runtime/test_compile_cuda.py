"""NVRTC is real here and needs no GPU; what is missing is only the launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu.launch_kinds import CASES, Case
from kb.dtype import DType, Target
from runtime.compile_cache import CompileCache
from runtime.compile_cuda import cuda_headers, nvrtc_version
from runtime.cuda_headers import find_headers
from runtime.device import assumed_cuda_device
from runtime.errors import CompileError, Level, LoadError, MissingToolError
from runtime.kernel import Compiled, compile_candidate
from tests.runtime.kernels_on_hand import candidate, contracts, kernel_dims_of, touching_every_argument

DIMS = {"num_tokens": 2, "hidden_size": 1024, "has_residual": 1}
ARGUMENTS = "(const T* x, T* residual, const T* weight, T* out, float eps, void* workspace)"


def compile_norm(source: str, images: CompileCache, arch: str = "sm_90", **launch: object) -> Compiled:
    plan = {"entry": "rows", "block": ["128", "1", "1"], **launch}
    made = candidate("residual_rmsnorm", Target.CUDA, source, plan)
    device = assumed_cuda_device(arch)
    return compile_candidate(made, contracts()["residual_rmsnorm"], DIMS, DType.BFLOAT16, cache=images, device=device)


@pytest.mark.parametrize("contract", sorted(contracts()))
def test_a_kernel_with_the_signature_of_every_contract_compiles(contract: str, images: CompileCache) -> None:
    definition = contracts()[contract]
    made = candidate(
        contract, Target.CUDA, touching_every_argument(definition), {"entry": "touch", "block": ["8", "1", "1"]}
    )
    for storage in definition.dtypes.storage:
        shape = kernel_dims_of(definition, definition.sweep.correctness[0])
        compiled = compile_candidate(
            made, definition, shape, storage, cache=images, device=assumed_cuda_device("sm_90")
        )
        assert compiled.image.path.read_bytes()[:4] == b"\x7fELF"
        assert compiled.image.resources["touch"].registers > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_kind_of_launch_compiles(case: Case, arch: str, images: CompileCache) -> None:
    device = assumed_cuda_device(arch)
    if device.capability < case.min_capability:
        pytest.skip(f"not on {arch}")
    compiled = compile_candidate(
        case.candidate(), contracts()["residual_rmsnorm"], case.dims, case.storage, cache=images, device=device
    )
    assert {launch.entry for launch in compiled.launches} <= set(compiled.image.resources)
    assert not any(r.spills for r in compiled.image.resources.values())


def test_an_error_points_at_the_candidates_own_line(images: CompileCache) -> None:
    source = f'extern "C" __global__ void rows{ARGUMENTS} {{\n  out[0] = x[0];\n  out[1] = nowhere;\n}}\n'
    with pytest.raises(CompileError) as caught:
        compile_norm(source, images)
    (error,) = caught.value.errors
    assert (error.line, error.column, error.level) == (3, 12, Level.ERROR)
    assert "nowhere" in error.text
    assert error.excerpt == "out[1] = nowhere;"
    assert str(caught.value) == 'NVRTC: line 3: error: identifier "nowhere" is undefined'


def test_an_instruction_the_architecture_lacks_is_an_error_of_ptxas(images: CompileCache) -> None:
    source = f'extern "C" __global__ void rows{ARGUMENTS} {{ asm volatile("barrier.cluster.arrive.aligned;"); }}\n'
    compile_norm(source, images, "sm_90")
    with pytest.raises(CompileError) as caught:
        compile_norm(source, images, "sm_80")
    assert caught.value.errors[0].file == "ptxas"


def test_the_prelude_gives_dims_and_device_as_constants(images: CompileCache) -> None:
    source = f"""static_assert(hidden_size == 1024 && num_tokens == 2 && has_residual == 1 && num_sms == 132);
static_assert(sizeof(T) == 2 && sizeof(uint64_t) == 8);
extern "C" __global__ void rows{ARGUMENTS} {{ out[0] = x[0]; }}
"""
    assert compile_norm(source, images).image.messages == ()


def test_resources_are_known_without_a_gpu(images: CompileCache) -> None:
    source = f"""extern "C" __global__ void rows{ARGUMENTS} {{
  __shared__ float kept[512];
  float local[64];
  for (int i = 0; i < 64; ++i) local[i] = 0.f;
  for (int i = 0; i < 64; ++i) local[int(float(x[i])) & 63] += eps;
  kept[threadIdx.x] = local[int(eps) & 63];
  __syncthreads();
  out[0] = T(kept[int(eps) + 1]);
}}
"""
    needs = compile_norm(source, images).image.resources["rows"]
    assert needs.shared_bytes == 2048
    assert needs.stack_bytes == 256
    assert needs.barriers == 1


def test_warnings_of_a_source_that_compiles_are_kept(images: CompileCache) -> None:
    source = f'extern "C" __global__ void rows{ARGUMENTS} {{\n  int unused;\n  out[0] = x[0]; }}\n'
    (warning,) = compile_norm(source, images).image.messages
    assert (warning.level, warning.line) == (Level.WARNING, 2)
    again = compile_norm(source, images).image
    assert again.cached
    assert again.messages == (warning,)


def test_headers_that_candidates_include_resolve(images: CompileCache) -> None:
    source = f"""#include <mma.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_pipeline.h>
#include <cuda/barrier>
extern "C" __global__ void rows{ARGUMENTS} {{ out[0] = x[0]; }}
"""
    assert "rows" in compile_norm(source, images).image.resources


def test_an_entry_the_source_does_not_define_is_named_with_those_it_does(images: CompileCache) -> None:
    source = f'extern "C" __global__ void other{ARGUMENTS} {{ out[0] = x[0]; }}\n'
    with pytest.raises(LoadError, match=r"defines no kernel 'rows'.*it has other"):
        compile_norm(source, images)


def test_static_and_dynamic_shared_memory_together_must_fit(images: CompileCache) -> None:
    source = f'extern "C" __global__ void rows{ARGUMENTS} {{ __shared__ float kept[4096]; kept[threadIdx.x] = 1; }}\n'
    source = source.replace("kept[threadIdx.x] = 1;", "kept[threadIdx.x] = 1; __syncthreads(); out[0] = T(kept[5]);")
    compile_norm(source, images, shared_bytes="100000")
    with pytest.raises(LoadError, match="246384 bytes of shared memory a block; sm_90 has 232448"):
        compile_norm(source, images, shared_bytes="230000")


def test_clusters_are_refused_where_the_architecture_has_none(images: CompileCache) -> None:
    source = f'extern "C" __global__ void rows{ARGUMENTS} {{ out[0] = x[0]; }}\n'
    plan = {"grid": ["8", "1", "1"], "cluster": ["4", "1", "1"]}
    compile_norm(source, images, **plan)
    with pytest.raises(LoadError, match="clusters need sm_90"):
        compile_norm(source, images, "sm_80", **plan)
    with pytest.raises(LoadError, match="not a multiple of cluster"):
        compile_norm(source, images, **plan | {"grid": ["6", "1", "1"]})
    with pytest.raises(LoadError, match="a cluster of 32 blocks"):
        compile_norm(source, images, grid=["32", "1", "1"], cluster=["16", "2", "1"])


def test_a_compiled_kernel_needs_its_device_to_be_loaded(images: CompileCache) -> None:
    from runtime.kernel import Kernel

    source = f'extern "C" __global__ void rows{ARGUMENTS} {{ out[0] = x[0]; }}\n'
    with pytest.raises(LoadError, match="assumed sm_90 is not there"):
        Kernel(compile_norm(source, images))


def test_headers_are_complete_where_the_extra_is_installed() -> None:
    headers = cuda_headers(nvrtc_version())
    assert headers.missing == ()
    assert headers.version[0] == nvrtc_version()[0]


def test_a_toolkit_without_its_core_libraries_is_used_last_and_names_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "include"
    partial.mkdir()
    for name in ("cuda_bf16.h", "cuda_fp16.h", "mma.h", "cooperative_groups.h"):
        (partial / name).write_text("")
    (partial / "cuda.h").write_text("#define CUDA_VERSION 99090\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    find_headers.cache_clear()
    assert find_headers((99, 9)).root != partial  # type: ignore[union-attr]
    monkeypatch.setattr("runtime.cuda_headers._roots", lambda: iter([partial]))
    find_headers.cache_clear()
    only = find_headers((99, 9))
    find_headers.cache_clear()
    assert only is not None
    assert only.version == (99, 9)
    assert only.wheels_missing == ("nvidia-cuda-cccl", "nvidia-cuda-crt")


def test_no_headers_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.compile_cuda.find_headers", lambda _: None)
    with pytest.raises(MissingToolError, match=r"agentcompile\[nvrtc\]"):
        cuda_headers((13, 0))
