from __future__ import annotations

import pytest
import torch

from kb.contract import Contract
from kb.dtype import DType
from validator.arena import GUARD_BYTES, WORKSPACE, Arena, nan_bytes, plan_layout
from validator.inputs import make_inputs

DIMS = {"num_tokens": 3, "hidden_size": 40, "has_residual": 1}


def arena(contract: Contract, workspace: int = 0, zeroed: bool = False) -> Arena:
    layout = plan_layout(contract, DIMS, DType.BFLOAT16, workspace)
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    return Arena(contract, layout, memory, torch.Generator().manual_seed(1), zeroed)


@pytest.fixture
def contract(contracts: dict[str, Contract]) -> Contract:
    return contracts["residual_rmsnorm"]


def test_every_contract_lays_out_at_least_alignment_with_guards_between(contracts: dict[str, Contract]) -> None:
    for contract in contracts.values():
        dims = contract.sweep.correctness[0]
        for shift in (0, 5):
            layout = plan_layout(contract, dims, DType.FLOAT16, 1000, shift=shift)
            end = 0
            for slot in layout.slots:
                align = 128 if slot.name == WORKSPACE else contract.tensor(slot.name).align
                assert slot.offset % align == 0
                assert slot.offset % (2 * align) != 0, "aligned better than declared"
                assert slot.offset - end >= GUARD_BYTES
                end = slot.end
            assert layout.nbytes - end >= GUARD_BYTES


def test_two_layouts_share_no_address(contract: Contract) -> None:
    one, other = (plan_layout(contract, DIMS, DType.BFLOAT16, 0, shift=s) for s in (0, 5))
    assert all(a.offset != b.offset for a, b in zip(one.slots, other.slots, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_guards_and_poison_read_as_nan_in_every_type(dtype: torch.dtype) -> None:
    assert torch.isnan(nan_bytes(4096, torch.Generator().manual_seed(7)).view(dtype)).all()


def test_poison_differs_from_call_to_call(contract: Contract) -> None:
    filled = arena(contract)
    inputs = make_inputs(contract, DIMS, DType.BFLOAT16, "normal", 1)
    contents = []
    for _ in range(2):
        filled.fill(inputs)
        out = filled.tensor("out")
        assert out is not None
        contents.append(out.clone().view(torch.int16))
    assert (contents[0] != contents[1]).float().mean() > 0.9


def test_an_untouched_arena_has_whole_guards_and_nothing_written(contract: Contract) -> None:
    filled = arena(contract)
    filled.fill(make_inputs(contract, DIMS, DType.BFLOAT16, "normal", 1))
    assert filled.damaged_guard() is None
    assert filled.unwritten("out").all()


def test_one_flipped_bit_in_a_guard_is_found_and_placed(contract: Contract) -> None:
    filled = arena(contract)
    slot = filled.layout.slot("weight")
    assert slot is not None
    filled.memory[slot.end + 2] ^= 1
    assert filled.damaged_guard() == ("weight", 3)
    filled.memory[slot.end + 2] ^= 1
    filled.memory[slot.offset - 1] ^= 128
    assert filled.damaged_guard() == ("weight", -1)


def test_one_element_left_out_is_found(contract: Contract) -> None:
    filled = arena(contract)
    filled.fill(make_inputs(contract, DIMS, DType.BFLOAT16, "normal", 1))
    out = filled.tensor("out")
    assert out is not None
    kept = out[2, 39].clone()
    out.zero_()
    out[2, 39] = kept
    assert filled.unwritten("out").nonzero().tolist() == [[2, 39]]


def test_a_kernel_may_write_nan_itself(contract: Contract) -> None:
    filled = arena(contract)
    filled.fill(make_inputs(contract, DIMS, DType.BFLOAT16, "normal", 1))
    out = filled.tensor("out")
    assert out is not None
    out.fill_(float("nan"))
    assert not filled.unwritten("out").any()


def test_a_workspace_that_starts_zeroed_must_be_left_zeroed(contract: Contract) -> None:
    filled = arena(contract, workspace=64, zeroed=True)
    assert filled.workspace_is_zero()
    workspace = filled.tensor(WORKSPACE)
    assert workspace is not None
    workspace[63] = 1
    assert not filled.workspace_is_zero()


def test_an_undefined_workspace_is_poisoned_before_each_call(contract: Contract) -> None:
    filled = arena(contract, workspace=64)
    inputs = make_inputs(contract, DIMS, DType.BFLOAT16, "normal", 1)
    filled.fill(inputs)
    workspace = filled.tensor(WORKSPACE)
    assert workspace is not None
    workspace.zero_()
    filled.fill(inputs)
    assert workspace.any()
    assert filled.workspace_is_zero()
