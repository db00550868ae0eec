"""Plans: legal, few, different from each other, in the cost model's order, and the same in every run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from generator.kernel_templates.legality import legal
from generator.kernel_templates.parameters import ElementwiseParameters, GemmParameters, TensorGemmParameters
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemmSpec,
    Op,
    Reduce,
    Reduction,
    RowSpec,
    Spec,
    Step,
    Store,
    dense,
)
from generator.plan import Hardware, cost_of, hardware_of, plan_key, plans_for
from kb.contract import Contract
from kb.dtype import DType
from kb.expr import Expr
from runtime.device import assumed_cuda_device, cpu_device

H200 = hardware_of(assumed_cuda_device("sm_90"))
HERE = hardware_of(cpu_device())
STORAGE = DType.BFLOAT16


def contract_of(*tensors: tuple[str, str, tuple[int, ...]]) -> Contract:
    """A contract whose tensors are all the planner reads of it."""
    return Contract.model_validate(
        {
            "id": "planned",
            "title": "For the planner",
            "family": "test",
            "status": "draft",
            "version": 1,
            "summary": "Tensors and their sizes.",
            "semantics": "None.",
            "dims": {},
            "tensors": tuple(
                {"name": n, "role": role, "shape": [Expr(str(s)) for s in shape], "dtype": "T", "doc": "A tensor"}
                for n, role, shape in tensors
            ),
            "dtypes": {"storage": ["bfloat16"], "accumulate": "float32"},
            "numerics": {"reference": "none", "tolerance": {"floor": 1.0}, "distributions": ["normal"]},
            "variants": [{"id": "all", "when": "1 == 1", "doc": "All"}],
            "baselines": {},
            "sweep": {"correctness": [{}], "performance": [{}]},
        }
    )


def product(m: int, n: int, k: int) -> tuple[Spec, Contract]:
    spec = GemmSpec(m, n, k, "x", "w", (Store(dense("out", (m, n)), "acc0"),))
    return spec, contract_of(("x", "in", (m, k)), ("w", "in", (n, k)), ("out", "out", (m, n)))


def softmax(rows: int, columns: int) -> tuple[Spec, Contract]:
    shape = (rows, columns)
    phases = (
        Reduce("top", Reduction.MAX, "x"),
        Step("shifted", Op.SUB, ("x", "top")),
        Step("power", Op.EXP, ("shifted",)),
        Reduce("total", Reduction.SUM, "power"),
        Step("y", Op.DIV, ("power", "total")),
    )
    spec = RowSpec(shape, (dense("x", shape),), phases, (Store(dense("out", shape), "y"),))
    return spec, contract_of(("x", "in", shape), ("out", "out", shape))


@pytest.mark.parametrize("hardware", [H200, HERE], ids=["cuda", "cpu"])
@pytest.mark.parametrize("made", [product(1, 4096, 4096), product(64, 1024, 512), softmax(32, 1000)])
def test_plans_are_legal_bounded_ranked_and_the_same_again(made: tuple[Spec, Contract], hardware: Hardware) -> None:
    spec, contract = made
    found = plans_for(spec, contract, hardware, {}, STORAGE, limit=5)
    assert 1 <= len(found.plans) <= 5
    for plan in found.legal:
        assert legal(spec, plan.parameters, hardware.target, hardware.arch, {}) is None
    times = [plan.cost.microseconds for plan in found.legal]
    assert times == sorted(times)
    assert [p.cost.microseconds for p in found.plans] == sorted(p.cost.microseconds for p in found.plans)
    assert found == plans_for(spec, contract, hardware, {}, STORAGE, limit=5)
    keys = [plan.key for plan in found.legal]
    assert len(keys) == len(set(keys))


def test_the_best_plan_is_always_among_the_few() -> None:
    spec, contract = product(1, 4096, 4096)
    for limit in (1, 2, 4, 8):
        found = plans_for(spec, contract, H200, {}, STORAGE, limit=limit)
        assert found.plans[0] == found.legal[0]


def test_a_product_is_planned_for_more_than_one_template() -> None:
    spec, contract = product(8, 4096, 4096)
    found = plans_for(spec, contract, H200, {}, STORAGE, limit=4)
    assert {plan.family for plan in found.plans} == {"gemv", "gemm", "tensor_gemm"}


def test_every_plan_that_is_removed_comes_with_the_constraint() -> None:
    spec, contract = product(8, 512, 500)  # rows of the weight do not start on 16 bytes
    found = plans_for(spec, contract, H200, {}, STORAGE)
    assert {plan.family for plan in found.legal} == {"gemm"}
    assert found.removed
    assert all("multiple of 8" in removed.constraint for removed in found.removed)
    older = replace(H200, arch="sm_80")
    spec, contract = product(8, 512, 512)
    reasons = [r.constraint for r in plans_for(spec, contract, older, {}, STORAGE).removed]
    assert any("clusters" in reason for reason in reasons)


def test_one_row_reads_its_weight_once_and_many_rows_go_to_tensor_cores() -> None:
    single, many = product(1, 8192, 4096), product(512, 8192, 4096)
    assert plans_for(*single, H200, {}, STORAGE).plans[0].family in ("gemv", "tensor_gemm")
    assert plans_for(*many, H200, {}, STORAGE).plans[0].family == "tensor_gemm"


def test_the_model_counts_bytes_operations_and_what_is_idle() -> None:
    spec, contract = product(4, 1024, 512)
    least = contract.bytes_moved({}, STORAGE)
    cost = cost_of(spec, GemmParameters(), H200, {}, least_bytes=least, storage=STORAGE)
    assert cost.flops == 2 * 4 * 1024 * 512
    assert cost.bytes >= least
    assert cost.occupancy == pytest.approx(16 / H200.units, abs=1e-3)  # sixteen tiles of 64 columns
    split = cost_of(spec, TensorGemmParameters(split=8), H200, {}, least_bytes=least, storage=STORAGE)
    assert split.occupancy > cost.occupancy


def test_wider_loads_are_estimated_faster() -> None:
    shape = (4096, 4096)
    spec = ElementwiseSpec(
        shape, (dense("x", shape),), (Step("y", Op.RELU, ("x",)),), (Store(dense("out", shape), "y"),)
    )
    contract = contract_of(("x", "in", shape), ("out", "out", shape))
    least = contract.bytes_moved({}, STORAGE)
    times = [
        cost_of(spec, ElementwiseParameters(v), H200, {}, least_bytes=least, storage=STORAGE).microseconds
        for v in (1, 2, 4, 8)
    ]
    assert times == sorted(times, reverse=True)


def test_a_key_says_what_is_not_usual() -> None:
    assert plan_key(GemmParameters()) == "gemm"
    assert plan_key(GemmParameters(tile_m=16, thread_m=1)) == "gemm tile_m=16 thread_m=1"


def test_an_advised_order_moves_plans_and_adds_none() -> None:
    spec, contract = product(8, 4096, 4096)
    found = plans_for(spec, contract, H200, {}, STORAGE, limit=3)
    last = found.legal[-1].key
    moved = found.reordered([last])
    assert moved.plans[0].key == last
    assert len(moved.plans) == 3
    assert moved.legal == found.legal
