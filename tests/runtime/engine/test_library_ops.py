"""The library path computes every contract as well as the float64 reference asks of a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from kb.contract import Contract, DimKind
from kb.dtype import DType
from kb.library import load_library
from runtime.engine.library_lm_head import wide_logits
from runtime.engine.library_ops import Library
from runtime.sites import CONTRACT_OPERATIONS, Segment, Site, SiteCall
from tests.runtime.against_reference import assert_right
from validator.inputs import CallInputs, allocate_outputs, make_inputs

CPU = torch.device("cpu")
# Inputs whose float32 sums cancel: the reference's own conditioning, not the library's, sets the error there.
ILL_CONDITIONED = {"large", "outliers"}


@lru_cache(maxsize=1)
def contracts() -> Mapping[str, Contract]:
    """The shipped contracts."""
    return load_library(Path(__file__).resolve().parents[3]).contracts


def cases() -> Iterator[tuple[str, int, DType]]:
    for operation in sorted(CONTRACT_OPERATIONS):
        for i in range(len(contracts()[operation].sweep.correctness)):
            for storage in (DType.BFLOAT16, DType.FLOAT32):
                yield operation, i, storage


def as_call(contract: Contract, dims: Mapping[str, int], storage: DType, inputs: CallInputs) -> SiteCall:
    """The call the decoder would make of these inputs."""
    known = {n: v for n, v in dims.items() if contract.dims[n].kind is not DimKind.WORKLOAD}
    site = Site(contract.id, tuple(sorted(known.items())), storage)
    tensors = {t.name: inputs.tensors.get(t.name) for t in contract.tensors}
    return SiteCall(site, tensors, inputs.scalars)


@pytest.mark.parametrize(("operation", "shape", "storage"), list(cases()))
def test_the_library_is_as_right_as_a_baseline_must_be(operation: str, shape: int, storage: DType) -> None:
    contract = contracts()[operation]
    dims = contract.sweep.correctness[shape]
    for distribution in contract.numerics.distributions:
        if storage is DType.FLOAT32 and distribution in ILL_CONDITIONED:
            continue
        inputs = make_inputs(contract, dims, storage, distribution, 3, CPU)
        got = inputs.clone().with_tensors(allocate_outputs(contract, dims, storage))
        Library().bind(as_call(contract, dims, storage, got))()
        assert_right(contract, dims, storage, f"{operation} {shape} {distribution}", got, inputs)


def test_the_argmax_of_narrow_logits_is_that_of_the_unrounded_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 256, generator=generator).bfloat16()
    w = torch.randn(5003, 256, generator=generator).bfloat16()
    w[4000] = w[17]  # an exact tie far away
    ids, best = torch.zeros(8, dtype=torch.int32), torch.zeros(8)
    dims = (("hidden_size", 256), ("num_tokens", 8), ("vocab_size", 5003))
    tensors = {"x": x, "w": w, "out_ids": ids, "out_max": best}
    Library().bind(SiteCall(Site("lm_head_argmax", dims, DType.BFLOAT16), tensors, {}))()
    truth = x.double() @ w.double().t()
    assert ids.tolist() == truth.argmax(-1).tolist()
    torch.testing.assert_close(best.double(), truth.amax(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(wide_logits(x, w).double(), truth, rtol=1e-4, atol=1e-4)


def test_logits_that_are_not_numbers_do_not_stop_the_batch() -> None:
    x = torch.stack([torch.full((64,), float("nan")), torch.ones(64)]).bfloat16()
    w = torch.arange(40 * 64).view(40, 64).bfloat16()
    ids, best = torch.zeros(2, dtype=torch.int32), torch.zeros(2)
    dims = (("hidden_size", 64), ("num_tokens", 2), ("vocab_size", 40))
    tensors = {"x": x, "w": w, "out_ids": ids, "out_max": best}
    Library().bind(SiteCall(Site("lm_head_argmax", dims, DType.BFLOAT16), tensors, {}))()
    assert ids.tolist() == [0, 39]
    assert best[0].isnan()


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 9), (7, 6), (16, 8), (31, 1)])
def test_prefill_rows_see_what_one_decode_row_each_would(start: int, length: int, window: int) -> None:
    torch.manual_seed(1)
    dims = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "block_size": 4, "sliding_window": window,
        "num_blocks": 20, "max_blocks_per_seq": 10, "num_tokens": length + 2,
    }  # fmt: skip
    k, v = torch.randn(20, 4, 2, 16), torch.randn(20, 4, 2, 16)
    table = torch.randperm(19)[:10].add(1).to(torch.int32)[None]
    q, out = torch.randn(length + 2, 4, 16), torch.zeros(length + 2, 4, 16)
    tensors = {"q": q, "k_cache": k, "v_cache": v, "block_table": table, "out": out}
    site = Site("prefill_attention", tuple(sorted(dims.items())), DType.FLOAT32)
    Library().bind(SiteCall(site, tensors, {"scale": 0.25}, 0, (Segment(2, length, start + length, 0),)))()
    expected = torch.zeros(length, 4, 16)
    rows = {
        "q": q[2:], "k_cache": k, "v_cache": v, "block_table": table.expand(length, -1).contiguous(),
        "seq_lens": torch.arange(start + 1, start + length + 1, dtype=torch.int32), "out": expected,
    }  # fmt: skip
    decode = Site("paged_decode_attention", tuple(sorted({**dims, "num_tokens": length}.items())), DType.FLOAT32)
    Library().bind(SiteCall(decode, rows, {"scale": 0.25}))()
    torch.testing.assert_close(out[2:], expected)
    assert not out[:2].any()
