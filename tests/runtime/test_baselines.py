"""The library path of every contract against the float64 references, and what the registry promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.baselines import Baseline, available_baselines, get_baseline, torch_sdpa
from runtime.baselines.torch_compiled import IMPLEMENTATIONS as COMPILED
from runtime.errors import MissingToolError
from tests.runtime.against_reference import EPS, assert_right, run
from validator.inputs import CallInputs, allocate_outputs, edge_inputs, make_inputs

CONTRACTS = load_library(library_root(None)).contracts
# float32 has no room for these: scores hundreds apart, or a mean far from zero, cost digits of float32 in any order.
ILL_CONDITIONED = {"large", "outliers", "scores hundreds apart", "a mean much larger than the spread"}


def cases(contract: Contract, dims: Mapping[str, int], storage: DType) -> Iterator[tuple[str, CallInputs]]:
    for distribution in contract.numerics.distributions:
        yield distribution, make_inputs(contract, dims, storage, distribution, 1)
    yield from edge_inputs(contract, dims, storage, 1)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
@pytest.mark.parametrize("storage", EPS)
def test_the_torch_path_is_right_over_the_sweep(contract: Contract, storage: DType) -> None:
    baselines = available_baselines(contract, Target.CPU)
    assert baselines
    for i, dims in enumerate(contract.sweep.correctness):
        for case, inputs in cases(contract, dims, storage):
            if storage is DType.FLOAT32 and case in ILL_CONDITIONED:
                continue
            if i != 1 and case != "normal":  # an odd shape shows every case, the others that their shape works
                continue
            for baseline in baselines:
                assert_right(contract, dims, storage, case, run(baseline, contract, dims, storage, inputs), inputs)


@pytest.mark.parametrize("contract_id", COMPILED)
def test_what_is_compiled_computes_what_torch_computes_step_by_step(contract_id: str) -> None:
    contract = CONTRACTS[contract_id]
    baseline = Baseline(contract_id, "torch_compiled", (Target.CPU,), "runtime.baselines.torch_compiled")
    with torch.compiler.set_stance("force_eager"):  # the sequence itself; generated code needs a GPU
        for dims in contract.sweep.correctness:
            inputs = make_inputs(contract, dims, DType.BFLOAT16, "normal", 1)
            got = run(baseline, contract, dims, DType.BFLOAT16, inputs)
            assert_right(contract, dims, DType.BFLOAT16, "normal", got, inputs)


def test_attention_over_all_gathered_blocks_is_right_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs: every sequence at once under a mask, whatever lies past its end."""
    contract = CONTRACTS["paged_decode_attention"]
    monkeypatch.setattr(torch_sdpa, "_gather_each", torch_sdpa._gather_all)
    for dims in contract.sweep.correctness:
        for case, inputs in cases(contract, dims, DType.BFLOAT16):
            got = run(get_baseline(contract.id, "torch_sdpa"), contract, dims, DType.BFLOAT16, inputs)
            assert_right(contract, dims, DType.BFLOAT16, case, got, inputs)


def test_preparing_changes_no_tensor() -> None:
    contract = CONTRACTS["residual_rmsnorm"]
    dims = contract.sweep.correctness[0]
    inputs = make_inputs(contract, dims, DType.FLOAT32, "normal", 1)
    call = inputs.clone().with_tensors(allocate_outputs(contract, dims, DType.FLOAT32))
    get_baseline(contract.id, "torch_eager").prepare(contract, dims, DType.FLOAT32, call.tensors, call.scalars)
    assert torch.equal(call.tensors["residual"], inputs.tensors["residual"])
    assert bool(call.tensors["out"].isnan().all())


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_a_prepared_call_reads_its_tensors_anew(contract: Contract) -> None:
    """A step binds its calls once: what changes in place between two calls must be seen by the second."""
    dims = contract.sweep.correctness[1]
    baseline = available_baselines(contract, Target.CPU)[0]
    first, second = (make_inputs(contract, dims, DType.FLOAT32, "normal", seed) for seed in (1, 2))
    bound = first.clone().with_tensors(allocate_outputs(contract, dims, DType.FLOAT32))
    call = baseline.prepare(contract, dims, DType.FLOAT32, bound.tensors, bound.scalars)
    call()
    for name, tensor in second.tensors.items():
        target = bound.tensors[name]
        if tensor is not None and target is not None:
            target.copy_(tensor)
    call()
    assert_right(contract, dims, DType.FLOAT32, "second", bound, second)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_every_baseline_a_contract_names_exists_for_that_target(contract: Contract) -> None:
    for target, names in contract.baselines.items():
        for name in names:
            baseline = get_baseline(contract.id, name)
            assert target in baseline.targets
            assert baseline.name == name


@pytest.mark.parametrize(
    ("contract_id", "name"),
    [
        ("rope", "torch_sdpa"),
        ("rope", "triton_kv_append"),
        ("nothing", "torch_eager"),
        ("encoder_mlp", "triton_encoder_mlp"),
    ],
)
def test_a_baseline_a_contract_does_not_have_is_refused(contract_id: str, name: str) -> None:
    with pytest.raises(KeyError, match=name):
        get_baseline(contract_id, name)


def test_what_cannot_run_here_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = CONTRACTS["paged_decode_attention"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    baseline = get_baseline(contract.id, "flashinfer")
    assert baseline.missing(Target.CUDA) == "flashinfer needs the package 'flashinfer': pip install flashinfer-python"
    assert baseline.missing(Target.CPU) == "flashinfer has no cpu implementation"
    assert [b.name for b in available_baselines(contract, Target.CPU)] == ["torch_sdpa"]
    with pytest.raises(MissingToolError, match="pip install flashinfer-python"):
        baseline.prepare(contract, contract.sweep.correctness[0], DType.BFLOAT16, {}, {})


def test_a_record_names_the_libraries_and_their_versions() -> None:
    versions = get_baseline("rope", "torch_eager").libraries()
    assert versions["torch"] == torch.__version__
    assert versions.get("cuda") == torch.version.cuda


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: None, "'x' is needed"),
        (lambda t: t.double(), r"torch.float32 \[1, 2048\], contiguous, is needed"),
        (lambda t: t[:, :-8], "'x' is torch.float32"),
        (lambda t: torch.cat((t, t), 1)[:, ::2], "not contiguous"),
    ],
)
def test_tensors_that_do_not_fit_the_contract_are_refused(change, message: str) -> None:
    contract = CONTRACTS["residual_rmsnorm"]
    dims = contract.sweep.correctness[0]
    call = make_inputs(contract, dims, DType.FLOAT32, "normal", 1)
    call = call.with_tensors(allocate_outputs(contract, dims, DType.FLOAT32) | {"x": change(call.tensors["x"])})
    with pytest.raises(ValueError, match=message):
        get_baseline(contract.id, "torch_eager").prepare(contract, dims, DType.FLOAT32, call.tensors, call.scalars)
