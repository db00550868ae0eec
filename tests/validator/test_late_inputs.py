"""What stands in front of a dependent launch: what arrives late, what is watched. The rest is in test_on_gpu."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from kb.candidate import ResolvedLaunch
from kb.contract import Contract, Early
from kb.dtype import DType
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from validator.arena import Layout, plan_layout
from validator.inputs import CallInputs, make_inputs
from validator.worker.late_inputs import POISON, late_inputs, newest_positions, starts_early

DEVICE = assumed_cuda_device("sm_90")


def covered(layout: Layout, spans: tuple[tuple[int, int], ...]) -> dict[str, int]:
    """Bytes of every buffer that the spans lie in."""
    found: dict[str, int] = {}
    for offset, nbytes in spans:
        slot = next(s for s in layout.slots if s.offset <= offset and offset + nbytes <= s.end)
        found[slot.name] = found.get(slot.name, 0) + nbytes
    return found


def prepared(contract: Contract, shape: int = 0) -> tuple[Layout, CallInputs]:
    dims = contract.sweep.correctness[shape]
    inputs = make_inputs(contract, dims, DType.BFLOAT16, "normal", 3, "cpu")
    return plan_layout(contract, dims, DType.BFLOAT16, 256), inputs


def test_activations_arrive_late_and_weights_are_there(contracts: dict[str, Contract], images: CompileCache) -> None:
    pytest.importorskip("cuda.core")
    layout, inputs = prepared(contracts["o_proj_residual_rmsnorm"])
    made = late_inputs(contracts["o_proj_residual_rmsnorm"], layout, inputs, DEVICE, images)
    assert set(covered(layout, made.late)) == {"attn", "residual"}
    assert set(covered(layout, made.watched)) == {"residual", "out"}


def test_of_a_paged_cache_only_the_newest_positions_arrive_late(
    contracts: dict[str, Contract], images: CompileCache
) -> None:
    pytest.importorskip("cuda.core")
    contract = contracts["paged_decode_attention"]
    dims = contract.sweep.correctness[1]
    layout, inputs = prepared(contract, 1)
    made = late_inputs(contract, layout, inputs, DEVICE, images)
    position = dims["num_kv_heads"] * dims["head_dim"] * 2
    query = dims["num_tokens"] * dims["num_heads"] * dims["head_dim"] * 2
    rows = dims["num_tokens"] * position
    assert covered(layout, made.late) == {"q": query, "k_cache": rows, "v_cache": rows}


def test_the_newest_position_is_the_last_token_of_its_block() -> None:
    table = torch.tensor([[7, 2, -1], [5, 99, 99]], dtype=torch.int32)
    lengths = torch.tensor([17, 16], dtype=torch.int32)
    inputs = CallInputs({"block_table": table, "seq_lens": lengths}, {})
    assert newest_positions(inputs, 16) == [2 * 16, 5 * 16 + 15]


def test_by_default_rows_of_the_step_come_late_and_the_rest_is_there(contracts: dict[str, Contract]) -> None:
    ready = {f"{c.id}.{t.name}": t.ready for c in contracts.values() for t in c.tensors}
    assert ready["gated_mlp_down.x"] is None
    assert ready["gated_mlp_down.residual"] is None
    assert ready["gated_mlp_down.w_down"] is Early.ALL
    assert ready["attention_prelude.positions"] is Early.ALL
    assert ready["attention_prelude.k_cache"] is None  # written
    assert ready["paged_decode_attention.k_cache"] is Early.ALL_BUT_NEWEST  # the contract permits it
    assert ready["encoder_attention.qkv"] is None


@pytest.mark.parametrize(("first", "second", "early"), [(True, False, True), (False, True, False)])
def test_only_the_first_launch_meets_the_kernel_in_front(first: bool, second: bool, early: bool) -> None:
    launches = [
        ResolvedLaunch(entry="e", grid=(1, 1, 1), block=(32, 1, 1), programmatic_dependent=dependent)
        for dependent in (first, second)
    ]
    assert starts_early(launches) is early


def test_what_has_not_arrived_is_nan_in_every_type() -> None:
    raw = torch.tensor(POISON * 2, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert raw.view(dtype).isnan().all()


def test_a_paged_cache_comes_late_unless_the_contract_permits_more(contracts: dict[str, Contract]) -> None:
    cache = contracts["paged_decode_attention"].tensor("k_cache")
    assert cache.model_copy(update={"early": None}).ready is None


@pytest.mark.parametrize(
    ("name", "early", "message"),
    [
        ("x", "none", "Input should be 'all' or 'all_but_newest'"),
        ("residual", "all", "tensors.residual.early: only an 'in' tensor can say so"),
        ("x", "all_but_newest", "tensors.x.early: newest positions need 'block_table' and 'seq_lens'"),
    ],
)
def test_a_permission_that_makes_no_sense_is_refused(
    contracts: dict[str, Contract], name: str, early: str, message: str
) -> None:
    data = contracts["residual_rmsnorm"].model_dump(mode="json")
    next(t for t in data["tensors"] if t["name"] == name)["early"] = early
    with pytest.raises(ValidationError, match=message):
        Contract.model_validate(data)
