"""A source with the device halves of dependent launch, on an architecture that has none."""

from __future__ import annotations

import pytest

from kb.candidate import Candidate, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from runtime.errors import CompileError
from runtime.kernel import compile_candidate, full_source, resolve_plan
from runtime.older import without_dependent_launch

DIMS = {"num_tokens": 2, "hidden_size": 64, "has_residual": 0}
SOURCE = """extern "C" __global__ void rms(const T* __restrict__ x, T* __restrict__ residual,
    const T* __restrict__ weight, T* __restrict__ out, float eps, void* __restrict__ workspace) {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
  asm volatile("griddepcontrol.wait;" : : : "memory");
  out[threadIdx.x] = x[threadIdx.x];MORE
}
"""


@pytest.fixture(scope="module")
def norm() -> Contract:
    return load_library(library_root()).contracts["residual_rmsnorm"]


def candidate(more: str = "", **launch: object) -> Candidate:
    plan = {"launches": [{"entry": "rms", "block": [64, 1, 1], "programmatic_dependent": True, **launch}]}
    source = SOURCE.replace("MORE", more)
    return Candidate(
        contract="residual_rmsnorm", target=Target.CUDA, source=source, plan=LaunchPlan.model_validate(plan)
    )


def test_only_the_two_instructions_go_and_every_line_stays() -> None:
    text = (
        'a;\nasm("griddepcontrol.wait;" ::: "memory");\nasm("{ griddepcontrol.launch_dependents ; mov.u32 a, b; }");\n'
    )
    assert without_dependent_launch(text) == 'a;\nasm("" ::: "memory");\nasm("{  mov.u32 a, b; }");\n'


def test_a_newer_device_gets_the_source_as_it_is(norm: Contract) -> None:
    for arch, kept in (("sm_80", False), ("sm_90", True), ("sm_100", True)):
        text = full_source(candidate(), norm, DIMS, DType.BFLOAT16, assumed_cuda_device(arch))
        assert ("griddepcontrol" in text) is kept


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_it_compiles_for_both(norm: Contract, tmp_path_factory: pytest.TempPathFactory, arch: str) -> None:
    pytest.importorskip("cuda.core")
    cache = CompileCache(tmp_path_factory.getbasetemp() / "older")
    compiled = compile_candidate(candidate(), norm, DIMS, DType.BFLOAT16, cache=cache, device=assumed_cuda_device(arch))
    assert set(compiled.image.resources) == {"rms"}


def test_what_has_no_meaning_there_still_does_not_compile(
    norm: Contract, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("cuda.core")
    cache = CompileCache(tmp_path_factory.getbasetemp() / "older")
    newer = candidate('\n  asm volatile("barrier.cluster.arrive.aligned;");')
    with pytest.raises(CompileError):
        compile_candidate(newer, norm, DIMS, DType.BFLOAT16, cache=cache, device=assumed_cuda_device("sm_80"))


def test_a_plan_may_launch_in_another_way_where_there_are_no_clusters() -> None:
    launch = {"entry": "rms", "grid": [2, 1, 1], "block": [64, 1, 1]}
    newer = {**launch, "cluster": [2, 1, 1], "when": "compute_capability >= 90"}
    plan = LaunchPlan.model_validate({"launches": [newer, {**launch, "when": "compute_capability < 90"}]})
    both = candidate().model_copy(update={"plan": plan})
    for arch, cluster in (("sm_90", (2, 1, 1)), ("sm_80", (1, 1, 1))):
        [found], _ = resolve_plan(both, DIMS, assumed_cuda_device(arch))
        assert found.cluster == cluster
