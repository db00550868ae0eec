"""The CUDA baselines on a GPU: right, the same twice, capturable, and following what changes between replays."""

from __future__ import annotations

import pytest
import torch

from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.baselines import Baseline, UnsupportedShapeError, get_baseline
from tests.runtime.against_reference import EPS, assert_right
from validator.inputs import CallInputs, allocate_outputs, edge_inputs, make_inputs

pytestmark = pytest.mark.gpu

CONTRACTS = load_library(library_root(None)).contracts
PAIRS = [(contract, name) for contract in CONTRACTS.values() for name in contract.baselines[Target.CUDA]]
IDS = [f"{contract.id}-{name}" for contract, name in PAIRS]


def present(contract: Contract, name: str) -> Baseline:
    baseline = get_baseline(contract.id, name)
    reason = baseline.missing(Target.CUDA)
    if reason is not None:
        pytest.skip(reason)
    return baseline


def complete(contract: Contract, dims: dict[str, int], storage: DType, inputs: CallInputs) -> CallInputs:
    return inputs.clone().with_tensors(allocate_outputs(contract, dims, storage, "cuda"))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers: a NaN is equal to itself."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize(("contract", "name"), PAIRS, ids=IDS)
@pytest.mark.parametrize("storage", EPS)
def test_the_baseline_is_right_and_the_same_twice(contract: Contract, name: str, storage: DType) -> None:
    baseline = present(contract, name)
    shapes = contract.sweep.correctness[:1] if name == "torch_compiled" else contract.sweep.correctness
    for dims in shapes:
        cases = [("normal", make_inputs(contract, dims, storage, "normal", 1, "cuda"))]
        if storage is not DType.FLOAT32:
            cases += edge_inputs(contract, dims, storage, 1, "cuda")
        for case, inputs in cases:
            runs = [complete(contract, dims, storage, inputs) for _ in range(2)]
            for call in runs:
                try:
                    baseline.prepare(contract, dims, storage, call.tensors, call.scalars)()
                except UnsupportedShapeError as error:
                    pytest.skip(str(error))
            assert_right(contract, dims, storage, case, runs[0], inputs)
            for tensor, again in zip(runs[0].tensors.values(), runs[1].tensors.values(), strict=True):
                assert tensor is None or again is None or torch.equal(bits(tensor), bits(again))


@pytest.mark.parametrize(("contract", "name"), PAIRS, ids=IDS)
def test_a_captured_call_reads_its_tensors_anew(contract: Contract, name: str) -> None:
    if name == "flashinfer":
        pytest.skip("its plan is made on the host and does not follow")
    baseline, storage, dims = present(contract, name), DType.BFLOAT16, contract.sweep.correctness[0]
    if contract.id == "encoder_attention":  # with every sequence full it takes the path without a mask, for good
        dims = contract.sweep.correctness[1]
    first = complete(contract, dims, storage, make_inputs(contract, dims, storage, "normal", 1, "cuda"))
    call = baseline.prepare(contract, dims, storage, first.tensors, first.scalars)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (2, 3):
        other = make_inputs(contract, dims, storage, "normal", seed, "cuda")
        for tensor_name, tensor in other.tensors.items():
            target = first.tensors[tensor_name]
            if tensor is not None and target is not None:
                target.copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        assert_right(contract, dims, storage, f"seed {seed}", first, other)


@pytest.mark.parametrize("tokens", [1, 5, 64])
@pytest.mark.parametrize("window", [0, 1000])
def test_one_captured_attention_serves_short_and_long_ragged_sequences(tokens: int, window: int) -> None:
    contract, storage = CONTRACTS["paged_decode_attention"], DType.BFLOAT16
    baseline = present(contract, "triton_paged_decode_attention")
    dims = {"num_tokens": tokens, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16}
    dims |= {"sliding_window": window, "num_blocks": tokens * 260, "max_blocks_per_seq": 260, "context_len": 4100}
    bound = complete(contract, dims, storage, make_inputs(contract, dims, storage, "normal", 1, "cuda"))
    call = baseline.prepare(contract, dims, storage, bound.tensors, bound.scalars)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for longest in (1, 17, 900, 4100):
        other = make_inputs(contract, dims | {"context_len": longest}, storage, "normal", longest, "cuda")
        for name, tensor in other.tensors.items():
            bound.tensors[name].copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        assert_right(contract, dims, storage, f"lengths up to {longest}", bound, other)
