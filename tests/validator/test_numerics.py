"""What the tolerances let pass and what not, on whole contracts with arithmetic that is known to be right or wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kb.contract import Contract
from kb.dtype import DType, Target
from runtime.baselines import available_baselines
from validator.inputs import CallInputs, edge_inputs, make_inputs
from validator.inputs.call_inputs import TORCH_DTYPES
from validator.inputs.edges import OVERFLOW
from validator.numerics import Drift, Truth, Votes, judge_outputs, truth_of
from validator.numerics.errors import EPS, error_of, finiteness, row_scale
from validator.numerics.truth import SERIAL_SUM

Outputs = dict[str, torch.Tensor]


def truth(
    contract: Contract, dims: dict[str, int], storage: DType, distribution: str = "normal", seed: int = 1
) -> Truth:
    inputs = make_inputs(contract, dims, storage, distribution, seed)
    return truth_of(contract, dims, storage, inputs, available_baselines(contract, Target.CPU))


def verdict(contract: Contract, dims: dict[str, int], storage: DType, known: Truth, outputs: Outputs) -> list[str]:
    return [f.code for f in judge_outputs(contract, dims, storage, "normal", known, outputs).findings]


def tensor(inputs: CallInputs, name: str) -> torch.Tensor:
    found = inputs.tensors[name]
    assert found is not None
    return found


# --- the metric ------------------------------------------------------------------------------------------------------


def test_the_error_of_the_rounded_truth_is_one_rounding() -> None:
    values = torch.randn(64, 4096, dtype=torch.float64)
    error = error_of(values.bfloat16(), values, row_scale(values))
    assert error.typical == pytest.approx(EPS[DType.BFLOAT16] / 12**0.5 * 0.75, rel=0.15)
    assert error.worst <= EPS[DType.BFLOAT16] / 2


def test_one_wrong_element_shows_in_the_worst_error_with_its_place() -> None:
    values = torch.randn(8, 512, dtype=torch.float64)
    got = values.clone()
    got[3, 100] += 0.5
    error = error_of(got, values, row_scale(values))
    assert error.place == (3, 100)
    assert error.worst > 0.1
    assert error.typical < 0.05


def test_a_tiny_row_counts_as_much_as_a_large_one() -> None:
    values = torch.randn(4, 256, dtype=torch.float64)
    values[0] *= 1e-3
    got = values.clone()
    got[0] = 0
    error = error_of(got, values, row_scale(values))
    assert error.typical == pytest.approx(0.5, rel=0.01)  # one of four rows is entirely wrong


def test_anything_in_a_row_of_zeros_is_an_error() -> None:
    values = torch.randn(2, 64, dtype=torch.float64)
    values[1] = 0
    got = values.clone()
    got[1, 5] = 1e-3
    assert error_of(got, values, row_scale(values)).worst > 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_finiteness_is_compared_position_by_position(dtype: torch.dtype) -> None:
    values = torch.tensor(
        [1.0, float("inf"), -float("inf"), float("nan"), 1e40 if dtype is torch.float32 else 1.0]
    ).double()
    exact = values.to(dtype)
    assert finiteness(exact, values) is None
    for i, replacement in ((0, float("nan")), (1, 1.0), (1, -float("inf")), (2, float("nan")), (3, 0.0)):
        got = exact.clone()
        got[i] = replacement
        found = finiteness(got, values)
        assert found is not None
        assert found[0] == (i,)


def test_beside_the_largest_number_either_way_passes() -> None:
    values = torch.tensor([65519.0, 65521.0], dtype=torch.float64)
    assert finiteness(torch.tensor([65504.0, 65504.0]).half(), values) is None
    assert finiteness(torch.tensor([float("inf")] * 2).half(), values) is None


# --- whole contracts -------------------------------------------------------------------------------------------------

MLP = {"num_tokens": 3, "hidden_size": 2048, "intermediate_size": 256}


def gated(inputs: CallInputs, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """silu(g) * u in float32 with the sums of ``product``."""
    y = product(tensor(inputs, "x"), tensor(inputs, "w_gate_up"))
    g, u = y.chunk(2, dim=1)
    return (torch.nn.functional.silu(g) * u).to(tensor(inputs, "x").dtype)


def exact32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.float() @ w.float().t()


def in_order(x: torch.Tensor, w: torch.Tensor, accumulator: torch.dtype) -> torch.Tensor:
    """One term after the other, each sum rounded to ``accumulator``."""
    total = torch.zeros(x.shape[0], w.shape[0], dtype=accumulator)
    for k in range(x.shape[1]):
        term = x[:, k, None].float() * w[None, :, k].float()
        total = (total.float() + term).to(accumulator)
    return total.float()


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("distribution", ["normal", "outliers", "tiny", "zeros", "one_hot"])
def test_fused_float32_intermediates_pass(contracts: dict[str, Contract], storage: DType, distribution: str) -> None:
    contract = contracts["gated_mlp_up"]
    known = truth(contract, MLP, storage, distribution)
    assert verdict(contract, MLP, storage, known, {"out": gated(known.inputs, exact32)}) == []


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
def test_a_serial_float32_sum_passes(contracts: dict[str, Contract], storage: DType) -> None:
    contract = contracts["gated_mlp_up"]
    known = truth(contract, MLP, storage)
    out = gated(known.inputs, lambda x, w: in_order(x, w, torch.float32))
    assert verdict(contract, MLP, storage, known, {"out": out}) == []


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("accumulator", [torch.float16, torch.bfloat16])
def test_a_narrow_accumulator_fails_on_a_long_sum(
    contracts: dict[str, Contract], storage: DType, accumulator: torch.dtype
) -> None:
    contract = contracts["gated_mlp_up"]
    known = truth(contract, MLP, storage)
    out = gated(known.inputs, lambda x, w: in_order(x, w, accumulator))
    assert verdict(contract, MLP, storage, known, {"out": out}) == ["error-too-large"]


@pytest.mark.parametrize("distribution", ["normal", "outliers", "tiny"])
def test_zeros_do_not_pass_whatever_the_scale(contracts: dict[str, Contract], distribution: str) -> None:
    contract = contracts["gated_mlp_up"]
    known = truth(contract, MLP, DType.BFLOAT16, distribution)
    out = torch.zeros_like(gated(known.inputs, exact32))
    assert "error-too-large" in verdict(contract, MLP, DType.BFLOAT16, known, {"out": out})


def test_products_of_inputs_rounded_to_ten_bits_fail_in_float32(contracts: dict[str, Contract]) -> None:
    def short(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    contract = contracts["gated_mlp_up"]
    known = truth(contract, MLP, DType.FLOAT32)
    out = gated(known.inputs, lambda x, w: short(x) @ short(w).t())
    assert verdict(contract, MLP, DType.FLOAT32, known, {"out": out}) == ["error-too-large"]


NORM = {"num_tokens": 9, "hidden_size": 1032, "has_residual": 1}


def norm(inputs: CallInputs, *, round_sum: bool = True, round_normed: bool = True) -> Outputs:
    """The contract in float32, with its binding points or without."""
    x, residual, weight = (tensor(inputs, n) for n in ("x", "residual", "weight"))
    dtype = x.dtype
    total = x.float() + residual.float()
    kept = total.to(dtype)
    s = kept.float() if round_sum else total
    normed = s * torch.rsqrt(s.square().mean(1, keepdim=True) + inputs.scalars["eps"])
    if round_normed:
        normed = normed.to(dtype).float()
    return {"residual": kept, "out": (normed * weight.float()).to(dtype)}


def votes(known: Truth, outputs: Outputs) -> tuple[int, int, int] | None:
    counted = Votes()
    counted.count(known, outputs)
    return counted.left_out()


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_that_rounds_where_it_must_wins_every_vote(
    contracts: dict[str, Contract], storage: DType, seed: int
) -> None:
    contract = contracts["residual_rmsnorm"]
    known = truth(contract, NORM, storage, seed=seed)
    outputs = norm(known.inputs)
    assert verdict(contract, NORM, storage, known, outputs) == []
    assert votes(known, outputs) is None


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize(("skipped", "point"), [({"round_sum": False}, 0), ({"round_normed": False}, 1)])
def test_a_kernel_that_leaves_a_round_out_is_more_accurate_and_still_found(
    contracts: dict[str, Contract], storage: DType, skipped: dict[str, bool], point: int
) -> None:
    contract = contracts["residual_rmsnorm"]
    known = truth(contract, NORM, storage)
    found = votes(known, norm(known.inputs, **skipped))
    assert found is not None
    assert found[0] == point


def test_a_kernel_that_rounds_where_it_may_is_not_taken_for_one_that_leaves_a_round_out(
    contracts: dict[str, Contract],
) -> None:
    contract = contracts["attention_prelude"]
    dims = dict(contract.sweep.correctness[0])
    for storage in (DType.BFLOAT16, DType.FLOAT16):
        known = truth(contract, dims, storage)  # the library path stores the projection and the normed heads
        assert known.without
        assert votes(known, dict(known.baseline)) is None


def test_every_library_path_passes_its_own_contract_in_every_distribution(contracts: dict[str, Contract]) -> None:
    for contract in contracts.values():
        dims = dict(contract.sweep.correctness[0])
        for storage in contract.dtypes.storage:
            counted = Votes()
            for distribution in contract.numerics.distributions:
                known = truth(contract, dims, storage, distribution)
                outputs = dict(known.baseline)
                found = judge_outputs(contract, dims, storage, distribution, known, outputs).findings
                assert not found, (contract.id, storage, distribution, found)
                counted.count(known, outputs)
            assert counted.left_out() is None, (contract.id, storage)


# --- indices ---------------------------------------------------------------------------------------------------------

HEAD = {"num_tokens": 4, "hidden_size": 256, "vocab_size": 500}


def head(inputs: CallInputs) -> tuple[torch.Tensor, torch.Tensor]:
    logits = tensor(inputs, "x").float() @ tensor(inputs, "w").float().t()
    return logits, logits.argmax(1)


def test_the_largest_logit_passes(contracts: dict[str, Contract]) -> None:
    contract = contracts["lm_head_argmax"]
    known = truth(contract, HEAD, DType.BFLOAT16)
    logits, ids = head(known.inputs)
    outputs = {"out_ids": ids.int(), "out_max": logits.max(1).values}
    assert verdict(contract, HEAD, DType.BFLOAT16, known, outputs) == []


@pytest.mark.parametrize("wrong", [-1, 500, 0])
def test_another_index_does_not(contracts: dict[str, Contract], wrong: int) -> None:
    contract = contracts["lm_head_argmax"]
    known = truth(contract, HEAD, DType.BFLOAT16)
    logits, ids = head(known.inputs)
    assert int(ids[2]) != wrong
    ids[2] = wrong
    outputs = {"out_ids": ids.int(), "out_max": logits.max(1).values}
    assert verdict(contract, HEAD, DType.BFLOAT16, known, outputs) == ["wrong-index"]


def test_an_index_within_the_margin_passes_and_an_exact_tie_goes_to_the_lowest(contracts: dict[str, Contract]) -> None:
    contract = contracts["lm_head_argmax"]
    inputs = make_inputs(contract, HEAD, DType.BFLOAT16, "normal", 3)
    w = tensor(inputs, "w").clone()
    _, ids = head(inputs)
    best = int(ids[0])
    other = (best + 7) % 500
    w[other] = w[best]
    inputs = inputs.with_tensors({"w": w})
    known = truth_of(contract, HEAD, DType.BFLOAT16, inputs)
    logits, ids = head(inputs)
    low, high = sorted((best, other))
    for chosen, expected in ((low, []), (high, ["wrong-index"])):
        ids[0] = chosen
        outputs = {"out_ids": ids.int(), "out_max": logits.max(1).values}
        assert verdict(contract, HEAD, DType.BFLOAT16, known, outputs) == expected
    nudged = w.clone()
    nudged[other] = w[other] * (1 - 2**-8)  # one part in 256: within the margin of eps(bfloat16)
    known = truth_of(contract, HEAD, DType.BFLOAT16, inputs.with_tensors({"w": nudged}))
    ids[0] = other
    findings = judge_outputs(
        contract, HEAD, DType.BFLOAT16, "n", known, {"out_ids": ids.int(), "out_max": logits.max(1).values}
    )
    assert "wrong-index" not in [f.code for f in findings.findings]


def test_logits_rounded_to_the_storage_type_are_found(contracts: dict[str, Contract]) -> None:
    contract = contracts["lm_head_argmax"]
    for storage in (DType.BFLOAT16, DType.FLOAT16):
        known = truth(contract, HEAD, storage)
        logits, ids = head(known.inputs)
        rounded = logits.max(1).values.to(TORCH_DTYPES[storage]).float()
        assert verdict(contract, HEAD, storage, known, {"out_ids": ids.int(), "out_max": rounded}) != []


def test_the_largest_logit_of_one_word_may_be_as_wrong_as_its_terms_are_large(contracts: dict[str, Contract]) -> None:
    """One number, close to zero because its terms cancel: relative to itself, any float32 sum is far off."""
    contract = contracts["lm_head_argmax"]
    dims = {"num_tokens": 1, "hidden_size": 1024, "vocab_size": 1}
    inputs = make_inputs(contract, dims, DType.FLOAT32, "normal", 3)
    x, w = tensor(inputs, "x"), tensor(inputs, "w")
    w[0, 0] -= (x.double() @ w[0].double() / x[0, 0].double()).float()[0] * (1 - 1e-4)
    known = truth_of(contract, dims, DType.FLOAT32, inputs, available_baselines(contract, Target.CPU))
    assert abs(float(known.expected["out_max"].values)) < 1e-3
    ids = torch.zeros(1, dtype=torch.int32)
    serial = in_order(x, w, torch.float32)[:, 0]
    assert verdict(contract, dims, DType.FLOAT32, known, {"out_ids": ids, "out_max": serial}) == []
    narrow = in_order(x, w, torch.bfloat16)[:, 0].float()
    assert verdict(contract, dims, DType.FLOAT32, known, {"out_ids": ids, "out_max": narrow}) == ["error-too-large"]


# --- the lean --------------------------------------------------------------------------------------------------------


def leaning(contract: Contract, storage: DType, store: Callable[[torch.Tensor, torch.dtype], torch.Tensor]) -> Drift:
    """What the truth looks like when it is stored by ``store``, over several inputs of the contract's second shape."""
    dims, drift = dict(contract.sweep.correctness[1]), Drift()
    for seed, distribution in enumerate(("normal", "outliers", "tiny", "zeros", "normal")):
        inputs = make_inputs(contract, dims, storage, distribution, seed)
        known = truth_of(contract, dims, storage, inputs)
        drift.count(known, {name: store(e.values, TORCH_DTYPES[storage]) for name, e in known.expected.items()})
    return drift


def towards_zero(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    near = values.to(dtype)
    bits = near.view(torch.int16)
    return torch.where(near.double().abs() > values.abs(), bits - 1, bits).view(dtype)


def downwards(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    bits = towards_zero(values, dtype).view(torch.int16)
    return torch.where(bits.view(dtype).double() > values, bits + 1, bits).view(dtype)


@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("contract_id", ["residual_rmsnorm", "gated_mlp_up", "rope"])
def test_only_rounding_to_nearest_leans_nowhere(
    contracts: dict[str, Contract], contract_id: str, storage: DType
) -> None:
    contract = contracts[contract_id]
    assert leaning(contract, storage, lambda values, dtype: values.to(dtype)).found() is None
    for store, side in ((towards_zero, "towards zero"), (downwards, "downwards")):
        found = leaning(contract, storage, store).found()
        assert found is not None
        assert found[1] == side
        assert found[2] == pytest.approx(-0.5, abs=0.1)


def test_rows_that_are_off_as_a_whole_do_not_lean_unless_they_all_lean_the_same_way(
    contracts: dict[str, Contract],
) -> None:
    """A factor of each row that was rounded, as probabilities may be: some rows grow and some shrink."""
    contract = contracts["paged_decode_attention"]
    dims = dict(contract.sweep.correctness[1])
    known = truth_of(contract, dims, DType.BFLOAT16, make_inputs(contract, dims, DType.BFLOAT16, "normal", 2))
    values = known.expected["out"].values
    off = torch.linspace(-1, 1, values.shape[0] * values.shape[1]).view(*values.shape[:2], 1) * 2.0**-9
    drift = Drift()
    drift.count(known, {"out": (values * (1 + off)).bfloat16()})
    assert drift.found() is None
    drift = Drift()
    drift.count(known, {"out": (values * (1 - 2.0**-8)).bfloat16()})
    assert drift.found() is not None


def test_edge_cases_have_truths_that_the_library_path_meets(contracts: dict[str, Contract]) -> None:
    for contract in contracts.values():
        dims = dict(contract.sweep.correctness[1])
        storage = contract.dtypes.storage[0]
        for name, inputs in edge_inputs(contract, dims, storage, 5):
            known = truth_of(contract, dims, storage, inputs, available_baselines(contract, Target.CPU))
            found = judge_outputs(contract, dims, storage, name, known, dict(known.baseline)).findings
            assert not found, (contract.id, name, found)


def test_what_overflows_float16_is_infinite_and_nothing_else_passes(contracts: dict[str, Contract]) -> None:
    tried = 0
    for contract in contracts.values():
        dims = dict(contract.sweep.correctness[0])
        assert OVERFLOW not in dict(edge_inputs(contract, dims, DType.BFLOAT16, 5))
        inputs = dict(edge_inputs(contract, dims, DType.FLOAT16, 5)).get(OVERFLOW)
        if inputs is None:
            continue
        tried += 1
        known = truth_of(contract, dims, DType.FLOAT16, inputs, available_baselines(contract, Target.CPU))
        assert verdict(contract, dims, DType.FLOAT16, known, dict(known.baseline)) == []
        clamped = {name: values.clamp(-65504, 65504) for name, values in known.baseline.items()}
        assert "not-finite" in verdict(contract, dims, DType.FLOAT16, known, clamped)
    assert tried == 5


def test_the_bound_on_serial_sums_holds_and_is_not_far_off() -> None:
    """SERIAL_SUM is where the arithmetic allowance comes from, so it is measured here."""
    torch.manual_seed(2)
    for length in (256, 4096):
        x, w = torch.randn(4, length), torch.randn(64, length)
        exact = x.double() @ w.double().t()
        error = error_of(in_order(x, w, torch.float32), exact, row_scale(exact)).typical
        allowed = SERIAL_SUM * EPS[DType.FLOAT32] * length**0.5
        assert allowed / 10 < error < allowed
