"""Which parameters a spec may have, and how many are worth a try."""

from __future__ import annotations

import pytest

from bench.gpu.template_cases import cases
from generator.kernel_templates.legality import legal, space
from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemmParameters,
    GemvParameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.specs import GemvSpec, Store, dense
from generator.kernel_templates.templates import instantiate
from kb.dtype import DType, Target

CASES = cases()
LINEAR = CASES["linear"].spec


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", Target)
def test_the_space_is_bounded_legal_and_the_same_every_time(name: str, target: Target) -> None:
    spec = CASES[name].spec
    found = list(space(spec, target, "sm_90"))
    assert 1 <= len(found) <= 100
    assert found == list(space(spec, target, "sm_90"))
    assert len(set(found)) == len(found)
    assert all(legal(spec, p, target, "sm_90") is None for p in found)


def test_clusters_need_an_architecture_that_has_them() -> None:
    split = TensorGemmParameters(split=4)
    assert legal(LINEAR, split, Target.CUDA, "sm_90") is None
    assert "from sm_90 on" in (legal(LINEAR, split, Target.CUDA, "sm_80") or "")
    assert all(getattr(p, "split", 0) in (0, 1) for p in space(LINEAR, Target.CUDA, "sm_80") if not _gemv(p))


def _gemv(parameters: object) -> bool:
    return isinstance(parameters, GemvParameters)


def test_a_contraction_that_breaks_alignment_is_left_to_the_cuda_cores() -> None:
    spec = GemvSpec(4, 8, 10, "input", "weight", (Store(dense("output", (4, 8)), "acc0"),))
    found = list(space(spec, Target.CUDA, "sm_90"))
    assert found
    assert all(isinstance(p, GemmParameters) for p in found)


def test_float32_is_left_to_the_cuda_cores() -> None:
    spec = GemvSpec(4, 8, 16, "input", "weight", (Store(dense("output", (4, 8)), "acc0"),), dtype=DType.FLOAT32)
    assert "CUDA cores" in (legal(spec, TensorGemmParameters(), Target.CUDA, "sm_90") or "")


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("chain", ElementwiseParameters(3, 256), "vector = 3"),
        ("chain", ElementwiseParameters(4, 100), "a block of 100 threads"),
        ("chain", RowParameters(), "row parameters belong"),
        ("softmax", RowParameters(8, 64, 2), "one warp"),
        ("linear", GemvParameters(rows=8), "registers"),
        ("linear", GemvParameters(split=8, warps=4), "do not divide"),
        ("linear", TensorGemmParameters(tile_n=48), "whole tiles of 16 rows"),
        ("linear", TensorGemmParameters(tile_n=256, tile_k=128, stages=8), "bytes of shared memory"),
        ("linear", GemmParameters(tile_k=256), "bytes of shared memory"),
        ("softmax", GemmParameters(), "matrix product"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(name: str, parameters: object, reason: str) -> None:
    found = legal(CASES[name].spec, parameters, Target.CUDA, "sm_90")  # type: ignore[arg-type]
    assert found is not None
    assert reason in found


def test_rows_too_long_for_registers_are_not_kept_there() -> None:
    spec = CASES["softmax"].spec
    assert legal(spec, RowParameters(8, 32, 4, True), Target.CUDA, "sm_90", {"num_columns": 1024}) is None
    assert legal(spec, RowParameters(8, 32, 4, True), Target.CUDA, "sm_90", {"num_columns": 4096}) is not None


def test_a_spec_of_another_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="has no tensor"):
        instantiate(CASES["linear"].spec, GemvParameters(), CASES["chain"].contract, Target.CUDA)


def test_parameters_of_another_family_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot make"):
        instantiate(CASES["chain"].spec, RowParameters(), CASES["chain"].contract, Target.CUDA)


def test_a_contract_that_uses_a_templates_own_name_is_refused() -> None:
    case = CASES["chain"]
    contract = case.contract.model_copy(
        update={"dims": {("rows" if n == "num_rows" else n): d for n, d in case.contract.dims.items()}}
    )
    with pytest.raises(ValueError, match="'rows' is a name the templates use"):
        instantiate(case.spec, ElementwiseParameters(), contract, Target.CUDA)
