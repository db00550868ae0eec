"""A result that is not the library's is found and its tensor named; whatever happens, the tensors are as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from runtime.engine.agreement import disagreement
from runtime.engine.library_ops import Library
from runtime.engine.rehearsal import rehearsal
from runtime.engine.splitting import SPLITTINGS
from runtime.sites import CONTRACT_OPERATIONS, Bound, Implementation, Selection, SiteCall
from tests.runtime.engine.conftest import Checkpoint
from tests.runtime.engine.virtual_time import Spoiling, Unbindable

WRITTEN = {
    "attention_prelude": ("q_out", "k_cache", "v_cache"),
    "paged_decode_attention": ("out",),
    "o_proj_residual_rmsnorm": ("residual", "out"),
    "gated_mlp_up": ("out",),
    "gated_mlp_down": ("residual",),
    "residual_rmsnorm": ("residual", "out"),
    "rope": ("q", "k"),
    "kv_append": ("k_cache", "v_cache"),
    "lm_head_argmax": ("out_max",),
}


Calls = dict[str, SiteCall]


@contextmanager
def rehearsed(c: Checkpoint, *, split: bool) -> Iterator[Calls]:
    """Calls of a step of two sequences over noise, one for each contract."""
    executor = c.engine(max_batch=2).executor
    selection = Selection(Library())
    program = executor.build(2, greedy=True)
    if split:
        for call in program.calls:
            if call.site.operation in SPLITTINGS:
                selection.choose(call.site, SPLITTINGS[call.site.operation]())
        program = executor.build(2, greedy=True, selection=selection)
    calls = {call.site.operation: call for call in program.calls if call.site.operation in CONTRACT_OPERATIONS}
    if split:
        for name in ("k", "v"):
            calls["kv_append"].tensor(name).normal_()
        calls["residual_rmsnorm"].tensor("x").normal_()
    with rehearsal(program.buffers, executor.decoder.pool, 9):
        yield calls


@pytest.fixture
def whole(checkpoint: Callable[[str], Checkpoint]) -> Iterator[Calls]:
    with rehearsed(checkpoint("qwen3"), split=False) as calls:
        yield calls


@pytest.fixture
def apart(checkpoint: Callable[[str], Checkpoint]) -> Iterator[Calls]:
    with rehearsed(checkpoint("qwen3"), split=True) as calls:
        yield calls


def contents(call: SiteCall) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in call.tensors.items() if tensor is not None}


def same(call: SiteCall, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(call.tensor(name), value) for name, value in before.items())


def checks(calls: Calls) -> None:
    """Every tensor that a call writes is looked at, and put back."""
    for operation, call in calls.items():
        before = contents(call)
        assert disagreement(call, Library(), Library()) is None
        assert same(call, before), operation
        for name in WRITTEN[operation]:
            if call.tensors[name] is None:
                continue
            problem = disagreement(call, Spoiling(name), Library())
            assert problem is not None, f"{operation}.{name}"
            assert problem.startswith(f"{name}: differs from the library by"), operation
            assert same(call, before), operation


def test_every_written_tensor_of_every_contract_is_compared_and_restored(whole: Calls) -> None:
    assert set(whole) == set(WRITTEN) - {"rope", "kv_append"}
    checks(whole)


def test_so_are_those_of_sites_taken_apart(apart: Calls) -> None:
    assert {"rope", "kv_append"} <= set(apart)
    checks(apart)


def test_what_stays_unwritten_is_a_disagreement(whole: Calls) -> None:
    class Idle:
        name, digest = "idle", None

        def bind(self, call: SiteCall) -> Bound:
            return lambda: None

    for operation, call in whole.items():
        assert disagreement(call, Idle(), Library()) is not None, operation


@pytest.mark.parametrize("by", [float("nan"), float("inf")])
def test_results_that_are_not_finite_where_the_librarys_are_disagree(whole: Calls, by: float) -> None:
    problem = disagreement(whole["gated_mlp_up"], Spoiling("out", by=by), Library())
    assert problem == "out: finite where the library is not, or the reverse"


def test_results_too_large_to_compare_disagree(whole: Calls) -> None:
    call = whole["gated_mlp_down"]
    call.tensor("residual").fill_(1e30)
    problem = disagreement(call, Spoiling("residual", by=1e30), Library())
    assert problem is not None
    assert "nan of its size" in problem


def test_a_few_roundings_are_no_disagreement(whole: Calls) -> None:
    call = whole["gated_mlp_up"]
    assert disagreement(call, Spoiling("out", by=1e-7), Library()) is None


@pytest.mark.parametrize(
    ("candidate", "message"),
    [(Spoiling("residual", error="out of range"), "out of range"), (Unbindable(), "no such instruction")],
)
def test_tensors_are_restored_when_the_candidate_raises(whole: Calls, candidate: Implementation, message: str) -> None:
    call = whole["gated_mlp_down"]
    before = contents(call)
    with pytest.raises(RuntimeError, match=message):
        disagreement(call, candidate, Library())
    assert same(call, before)


def test_a_cache_is_compared_and_restored_at_the_slots_that_are_written(apart: Calls) -> None:
    call = apart["kv_append"]
    before = call.tensor("k_cache").clone()
    assert disagreement(call, Library(), Library()) is None
    assert torch.equal(call.tensor("k_cache"), before)
    problem = disagreement(call, Spoiling("v_cache"), Library())
    assert problem is not None
    assert problem.startswith("v_cache: ")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((0, 0), "out_ids: the logits of these tokens differ from the largest by"),
        ((-1, 0), "out_ids: a token outside the vocabulary of 211"),
        ((0, 211), "out_ids: a token outside the vocabulary of 211"),
    ],
)
def test_the_right_maximum_of_the_wrong_tokens_is_a_disagreement(
    whole: Calls, ids: tuple[int, int], message: str
) -> None:
    class Mistaken:
        name, digest = "mistaken", None

        def bind(self, call: SiteCall) -> Bound:
            bound = Library().bind(call)

            def run() -> None:
                bound()
                call.tensor("out_ids").copy_(torch.tensor(ids))

            return run

    problem = disagreement(whole["lm_head_argmax"], Mistaken(), Library())
    assert problem is not None
    assert problem.startswith(message)
