from __future__ import annotations

import pytest

from kb.contract import Contract
from kb.dtype import DType
from validator.shapes import MAX_BYTES, hidden_shapes, repair, sweep_shapes


def test_hidden_shapes_are_valid_distinct_and_not_in_the_sweep(contracts: dict[str, Contract]) -> None:
    for contract in contracts.values():
        known = [dict(s.dims) for s in sweep_shapes(contract)]
        shapes = hidden_shapes(contract, seed=11, count=6)
        assert len(shapes) == 6, contract.id
        for shape in shapes:
            contract.check_dims(shape.dims)
            assert dict(shape.dims) not in known
            assert contract.bytes_moved(shape.dims, DType.FLOAT32) <= MAX_BYTES
            known.append(dict(shape.dims))


def test_the_seed_decides_hidden_shapes(contracts: dict[str, Contract]) -> None:
    contract = contracts["gated_mlp_up"]
    assert hidden_shapes(contract, 3, 4) == hidden_shapes(contract, 3, 4)
    assert any(hidden_shapes(contract, 3, 4) != hidden_shapes(contract, s, 4) for s in range(4, 8))


@pytest.mark.parametrize(
    ("contract_id", "name", "wanted"),
    [
        ("gated_mlp_up", "num_tokens", {2, 7, 9}),
        ("paged_decode_attention", "context_len", {15, 17, 47, 49}),
        ("paged_decode_attention", "head_dim", {64, 128, 256}),
        ("attention_prelude", "has_qk_norm", {0, 1}),
    ],
)
def test_hidden_shapes_sit_beside_limits(
    contracts: dict[str, Contract], contract_id: str, name: str, wanted: set[int]
) -> None:
    seen = {shape.dims[name] for seed in range(60) for shape in hidden_shapes(contracts[contract_id], seed, 6)}
    assert wanted <= seen


def test_a_shape_that_needs_a_larger_cache_gets_one(contracts: dict[str, Contract]) -> None:
    contract = contracts["paged_decode_attention"]
    dims = {**contract.sweep.correctness[0], "block_size": 1}
    repaired = repair(contract, dims)
    assert repaired is not None
    assert repaired["num_blocks"] > dims["num_blocks"]


def test_a_shape_that_cannot_fit_is_given_up(contracts: dict[str, Contract]) -> None:
    contract = contracts["rope"]
    assert repair(contract, {**contract.sweep.correctness[0], "head_dim": 7}) is None
