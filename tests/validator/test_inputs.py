"""What inputs promise whatever the seed and the dims: properties, then the edge cases one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.contract import Contract
from kb.dtype import DType
from kb.library import library_root, load_library
from validator.inputs import CallInputs, allocate_outputs, edge_inputs, make_inputs, make_timing_inputs, structure
from validator.inputs.call_inputs import INTEGER_POISON, TORCH_DTYPES
from validator.inputs.distributions import draw, generator, normal

CONTRACTS = load_library(library_root(None)).contracts
ATTENTION = CONTRACTS["paged_decode_attention"]
ENCODER = CONTRACTS["encoder_attention"]
STORAGES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
seeds = st.integers(0, 2**31)


@st.composite
def paged_dims(draw_: st.DrawFn) -> dict[str, int]:
    tokens, size = draw_(st.integers(1, 9)), draw_(st.sampled_from([1, 3, 16]))
    context = draw_(st.integers(1, 70))
    blocks = -(-context // size)
    return {
        "num_tokens": tokens,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "block_size": size,
        "sliding_window": draw_(st.sampled_from([0, 1, 7])),
        "num_blocks": tokens * blocks + draw_(st.integers(0, 5)),
        "max_blocks_per_seq": blocks + draw_(st.integers(0, 4)),
        "context_len": context,
    }


def equal(a: CallInputs, b: CallInputs) -> bool:
    same = (
        x is y if x is None or y is None else torch.equal(x, y)
        for x, y in ((a.tensors[name], b.tensors[name]) for name in a.tensors)
    )
    return a.scalars == b.scalars and all(same)


@settings(max_examples=60, deadline=None)
@given(paged_dims(), seeds)
def test_live_table_entries_are_distinct_blocks_and_all_others_lie_outside(dims: dict[str, int], seed: int) -> None:
    inputs = make_inputs(ATTENTION, dims, DType.FLOAT32, "zeros", seed)
    lengths, table = inputs.tensors["seq_lens"], inputs.tensors["block_table"]
    assert int(lengths.min()) >= 1
    assert int(lengths.max()) == dims["context_len"]
    used = torch.arange(dims["max_blocks_per_seq"]) < -(-lengths[:, None] // dims["block_size"])
    live, dead = table[used], table[~used]
    assert len(live.unique()) == len(live)
    assert bool(((live >= 0) & (live < dims["num_blocks"])).all())
    assert bool(((dead < 0) | (dead >= dims["num_blocks"])).all())


@settings(max_examples=40, deadline=None)
@given(paged_dims(), seeds)
def test_only_slots_that_must_not_be_read_are_enlarged(dims: dict[str, int], seed: int) -> None:
    inputs = make_inputs(ATTENTION, dims, DType.FLOAT32, "uniform", seed)
    cache, table, lengths = (inputs.tensors[n] for n in ("k_cache", "block_table", "seq_lens"))
    window, size = dims["sliding_window"], dims["block_size"]
    counted = torch.zeros(cache.shape[0] * size, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        for j in range(max(0, length - window) if window else 0, length):
            counted[int(table[row, j // size]) * size + j % size] = True
    rows = cache.flatten(0, 1).abs().amax(dim=(1, 2))
    assert bool((rows[counted] <= 1).all())
    assert not len(rows[~counted]) or float(rows[~counted].max()) > 1


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_slots_are_distinct_and_inside_the_cache(seed: int, tokens: int, size: int, spare: int) -> None:
    dims = {"num_tokens": tokens, "num_kv_heads": 1, "head_dim": 8, "block_size": size}
    dims |= {"num_blocks": -(-(tokens + spare) // size)}
    slots = make_inputs(CONTRACTS["kv_append"], dims, DType.FLOAT32, "normal", seed).tensors["slot_mapping"]
    assert slots.dtype == torch.int32
    assert len(slots.unique()) == tokens
    assert 0 <= int(slots.min()) <= int(slots.max()) < dims["num_blocks"] * size


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from(sorted(CONTRACTS)), st.sampled_from(STORAGES))
def test_a_seed_decides_every_bit_and_another_gives_other_inputs(seed: int, contract_id: str, storage: DType) -> None:
    contract = CONTRACTS[contract_id]
    dims = min(contract.sweep.correctness, key=lambda d: contract.bytes_moved(d, storage))
    first = make_inputs(contract, dims, storage, "normal", seed)
    assert equal(first, make_inputs(contract, dims, storage, "normal", seed))
    assert not equal(first, make_inputs(contract, dims, storage, "normal", seed + 1))


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_inputs_have_the_contracts_shapes_types_and_absences(contract: Contract) -> None:
    for dims in contract.sweep.correctness:
        for distribution in contract.numerics.distributions:
            inputs = make_inputs(contract, dims, DType.FLOAT16, distribution, 5)
            full = inputs.with_tensors(allocate_outputs(contract, dims, DType.FLOAT16))
            assert set(full.tensors) == {t.name for t in contract.tensors}
            assert set(full.scalars) == {s.name for s in contract.scalars}
            for spec in contract.tensors:
                tensor = full.tensors[spec.name]
                assert (tensor is not None) == contract.is_present(spec, dims)
                if tensor is not None:
                    assert tuple(tensor.shape) == contract.shape_of(spec, dims)
                    assert tensor.dtype == TORCH_DTYPES[spec.dtype.bind(DType.FLOAT16)]
                    assert tensor.is_contiguous()
                    assert spec.role == "out" or torch.isfinite(tensor.double()).all()


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_every_edge_case_a_contract_names_has_inputs_at_some_shape(contract: Contract) -> None:
    shown: set[str] = set()
    for dims in contract.sweep.correctness:
        for name, inputs in edge_inputs(contract, dims, DType.BFLOAT16, 2):
            shown.add(name)
            for spec in contract.tensors:
                tensor = inputs.tensors.get(spec.name)
                if tensor is not None:
                    assert tuple(tensor.shape) == contract.shape_of(spec, dims)
                    assert tensor.dtype == TORCH_DTYPES[spec.dtype.bind(DType.BFLOAT16)]
    assert shown == set(contract.numerics.edge_cases)


def test_an_edge_case_without_inputs_is_refused() -> None:
    contract = CONTRACTS["rope"]
    numerics = contract.numerics.model_copy(update={"edge_cases": ("a pole",)})
    odd = contract.model_copy(update={"numerics": numerics})
    with pytest.raises(ValueError, match="the edge case 'a pole'"):
        list(edge_inputs(odd, contract.sweep.correctness[0], DType.FLOAT32, 0))


def test_outputs_start_as_poison() -> None:
    contract = CONTRACTS["lm_head_argmax"]
    outputs = allocate_outputs(contract, contract.sweep.correctness[0], DType.FLOAT16)
    assert bool(outputs["out_max"].isnan().all())
    assert bool((outputs["out_ids"] == INTEGER_POISON).all())


@given(st.sampled_from(["uniform", "outliers", "one_hot", "neg_inf", "constant", "ramp", "tiny", "large"]), seeds)
@settings(max_examples=60, deadline=None)
def test_distributions_are_what_they_are_called(name: str, seed: int) -> None:
    values = draw(name, (6, 400), torch.float32, generator("cpu", seed, name))
    match name:
        case "uniform":
            assert -1 <= float(values.min()) < -0.9
            assert 0.9 < float(values.max()) <= 1
        case "outliers":
            assert float(values.abs().max()) > 8
            assert float(values.abs().median()) < 1
        case "one_hot":
            assert bool(((values != 0).sum(dim=1) <= 1).all())
        case "neg_inf":
            assert int(values.isinf().sum()) == int((values == -math.inf).sum()) > 0
        case "constant":
            assert bool((values == values[:, :1]).all())
            assert float(values.double().var(dim=1, correction=0).max()) == 0
        case "ramp":
            assert bool((values.diff(dim=1) > 0).all())
        case "tiny":
            assert 0 < float(values.abs().max()) < 0.01
        case "large":
            assert float(values.abs().max()) > 1000


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="'lumpy'"):
        draw("lumpy", (2, 2), torch.float32, generator("cpu", 0, "x"))


def test_large_tensors_repeat_no_row() -> None:
    big = normal((1 << 13, 1 << 12), torch.bfloat16, generator("cpu", 0, "w"))
    start = big[:, :8].contiguous().view(torch.int64).view(len(big), -1)
    assert len(start.unique(dim=0)) == len(big)
    assert abs(float(big[:512].float().std()) - 1) < 0.01


def test_the_cos_sin_table_is_on_the_unit_circle_and_starts_at_zero_angle() -> None:
    table = structure.cos_sin_table(50, 16)
    cos, sin = table.double().chunk(2, dim=1)
    assert torch.allclose(cos**2 + sin**2, torch.ones(50, 8, dtype=torch.float64), atol=1e-6)
    assert torch.equal(table[0], torch.tensor([1.0] * 8 + [0.0] * 8))
    assert math.isclose(float(table[3, 0]), math.cos(3), abs_tol=1e-7)


def test_infinite_padding_reaches_every_padded_row_and_no_other() -> None:
    dims = {"batch_size": 3, "seq_len": 10, "num_heads": 2, "head_dim": 8}
    inputs = dict(edge_inputs(ENCODER, dims, DType.FLOAT16, 0))["padding holds infinities that must not leak"]
    qkv, lengths = inputs.tensors["qkv"], inputs.tensors["seq_lens"]
    padding = torch.arange(10) >= lengths[:, None]
    assert bool(qkv[padding].isinf().all())
    assert bool(qkv[~padding].isfinite().all())


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_timing_sets_are_complete_full_length_and_apart_in_memory(contract: Contract) -> None:
    dims = contract.sweep.correctness[0]
    moved = contract.bytes_moved(dims, DType.BFLOAT16)
    sets = make_timing_inputs(contract, dims, DType.BFLOAT16, "cpu", 5 * moved)
    assert len(sets) == 5
    for made in sets:
        assert set(made.tensors) == {t.name for t in contract.tensors}
        lengths = made.tensors.get("seq_lens")
        if lengths is not None:
            assert bool((lengths == dims.get("context_len", dims.get("seq_len"))).all())
    written = [t.name for t in contract.tensors if t.role != "in" and contract.is_present(t, dims)]
    for name in written:
        assert len({made.tensors[name].data_ptr() for made in sets}) == 5


def test_timing_sets_that_share_a_cache_use_different_blocks() -> None:
    dims = {"num_tokens": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "block_size": 4, "sliding_window": 0}
    dims |= {"num_blocks": 20, "max_blocks_per_seq": 3, "context_len": 12}
    sets = make_timing_inputs(ATTENTION, dims, DType.FLOAT32, "cpu", 4 * ATTENTION.bytes_moved(dims, DType.FLOAT32))
    caches = [made.tensors["k_cache"].data_ptr() for made in sets]
    assert caches == [caches[0]] * 3 + [caches[3]]
    used = torch.cat([made.tensors["block_table"].flatten() for made in sets[:3]])
    assert len(used.unique()) == len(used) == 18


def test_timing_sets_stop_at_the_memory_they_may_take() -> None:
    contract = CONTRACTS["kv_append"]
    dims = contract.sweep.correctness[0]
    one = make_timing_inputs(contract, dims, DType.FLOAT32, "cpu", 0)[0].nbytes
    sets = make_timing_inputs(contract, dims, DType.FLOAT32, "cpu", 1 << 40, max_allocated_bytes=3 * one)
    assert len(sets) == 3
