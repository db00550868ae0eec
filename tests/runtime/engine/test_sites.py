"""Sites can be given other implementations, one by one, and whatever fails falls back with the tokens unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kb.candidate import Candidate
from kb.candidate_files import read_candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import load_library
from runtime.baselines import get_baseline
from runtime.compile_cache import CompileCache
from runtime.engine.implementations import BaselineImplementation, KernelImplementation
from runtime.engine.library_ops import Library
from runtime.engine.request import SamplingParams
from runtime.engine.splitting import SPLITTINGS
from runtime.sites import CONTRACT_OPERATIONS, Bound, FallbackRefusedError, Implementation, Selection, Site, SiteCall
from tests.runtime.engine.checkpoints import greedy
from tests.runtime.engine.conftest import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
PROMPT = [5, 9, 30, 7]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@lru_cache(maxsize=1)
def contracts() -> Mapping[str, Contract]:
    """The shipped contracts."""
    return load_library(ROOT).contracts


def run(c: Checkpoint, selection: Selection, **settings: Any) -> list[list[int]]:
    """Tokens of a batch of two under ``selection``."""
    engine = c.engine(max_batch=2, **settings)
    engine.selection = engine.executor.selection = selection
    return [list(r.token_ids) for r in engine.generate([PROMPT, PROMPT[:2]], PARAMS)]


def decode_sites(c: Checkpoint, bucket: int = 2) -> list[Site]:
    """Sites of one decode bucket that a kernel can be chosen for."""
    calls = c.engine(max_batch=2).executor.program(bucket, greedy=True).calls
    return sorted({call.site for call in calls if call.site.operation in CONTRACT_OPERATIONS}, key=str)


def fits(call: SiteCall) -> None:
    """Assert that a kernel of the contract could be bound to ``call``."""
    contract = contracts()[call.site.operation]
    contract.check_dims({**call.dims, **({"context_len": 1} if "context_len" in contract.dims else {})})
    assert set(call.tensors) == {t.name for t in contract.tensors}
    assert set(call.scalars) == {s.name for s in contract.scalars}
    for spec in contract.tensors:
        tensor = call.tensors[spec.name]
        assert (tensor is not None) == contract.is_present(spec, call.dims), spec.name
        if tensor is None:
            continue
        assert tuple(tensor.shape) == contract.shape_of(spec, call.dims)
        assert tensor.is_contiguous()
        assert str(tensor.dtype) == f"torch.{spec.dtype.bind(DType.FLOAT32).value}"
        assert tensor.data_ptr() % spec.align == 0, f"{call.site.operation}.{spec.name}"
    written = [call.tensors[t.name] for t in contract.tensors if t.role.value == "out"]
    others = [call.tensors[t.name] for t in contract.tensors if t.role.value != "out"]
    assert not {t.data_ptr() for t in written if t is not None} & {t.data_ptr() for t in others if t is not None}


class Broken:
    """Cannot be bound."""

    name, digest = "broken", None

    def bind(self, call: SiteCall) -> Bound:
        raise RuntimeError("no such instruction")


def test_a_decode_step_is_made_of_the_contracts_sites(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    operations = [site.operation for site in decode_sites(c)]
    assert operations == [
        "attention_prelude",
        "gated_mlp_down",
        "gated_mlp_up",
        "lm_head_argmax",
        "o_proj_residual_rmsnorm",
        "paged_decode_attention",
        "residual_rmsnorm",
    ]
    program = c.engine(max_batch=2).executor.program(2, greedy=True)
    per_layer = [call.site.operation for call in program.calls if call.layer == 1]
    assert per_layer == [
        "attention_prelude",
        "paged_decode_attention",
        "o_proj_residual_rmsnorm",
        "gated_mlp_up",
        "gated_mlp_down",
        "residual_rmsnorm",
    ]


@pytest.mark.parametrize("name", ["qwen3", "glm", "glm4", "qwen3-half-windowed", "qwen3-bias-yarn"])
def test_every_call_of_a_site_fits_its_contract(name: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    program = checkpoint(name).engine(max_batch=2).executor.program(2, greedy=True)
    for call in program.calls:
        if call.site.operation in CONTRACT_OPERATIONS:
            fits(call)


def test_bound_calls_keep_their_memory_from_step_to_step(checkpoint: Callable[[str], Checkpoint]) -> None:
    engine = checkpoint("qwen3").engine(max_batch=2)
    program = engine.executor.program(1, greedy=True)
    before = [{n: t.data_ptr() for n, t in call.tensors.items() if t is not None} for call in program.calls]
    engine.generate([PROMPT], PARAMS)
    assert engine.executor.program(1, greedy=True) is program
    assert before == [{n: t.data_ptr() for n, t in call.tensors.items() if t is not None} for call in program.calls]


def test_buckets_are_slices_of_one_set_of_buffers(checkpoint: Callable[[str], Checkpoint]) -> None:
    executor = checkpoint("qwen3").engine(max_batch=4).executor
    small, large = executor.program(1, greedy=True).buffers, executor.program(4, greedy=True).buffers
    assert small.x.data_ptr() == large.x.data_ptr()
    assert small.block_table.data_ptr() == large.block_table.data_ptr()


def test_what_cannot_be_bound_falls_back_with_a_warning_and_is_counted(
    checkpoint: Callable[[str], Checkpoint],
) -> None:
    c = checkpoint("qwen3")
    selection = Selection(Library())
    [site] = [s for s in decode_sites(c) if s.operation == "gated_mlp_up"]
    selection.choose(site, Broken())
    with pytest.warns(
        UserWarning, match=r"gated_mlp_up falls back to the library path \(broken: no such instruction\)"
    ):
        tokens = run(c, selection)
    assert tokens == [greedy(c.model, p, 24) for p in (PROMPT, PROMPT[:2])]
    assert selection.fallbacks == {site: "broken: no such instruction"}
    assert selection.implementation(site) is selection.library


def test_falling_back_can_be_forbidden(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    selection = Selection(Library(), allow_fallback=False)
    selection.choose(decode_sites(c)[0], Broken())
    with pytest.raises(FallbackRefusedError, match=r"attention_prelude\[.*cannot run broken: no such instruction"):
        run(c, selection)


def test_operations_without_a_contract_cannot_be_given_a_kernel() -> None:
    with pytest.raises(ValueError, match="embed has no contract"):
        Selection(Library()).choose(Site("embed", (("num_tokens", 1),), DType.FLOAT32), Broken())


@pytest.mark.parametrize("name", ["qwen3", "glm", "mistral-v0.1"])
def test_named_baselines_give_the_same_tokens(name: str, checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint(name)
    selection = Selection(Library(), allow_fallback=False)
    for site in decode_sites(c):
        library = "torch_sdpa" if site.operation == "paged_decode_attention" else "torch_eager"
        baseline = BaselineImplementation(get_baseline(site.operation, library), contracts()[site.operation])
        selection.choose(site, baseline)
    assert run(c, selection) == [greedy(c.model, p, 24) for p in (PROMPT, PROMPT[:2])]


@pytest.mark.parametrize("name", ["qwen3", "glm", "qwen3-bias-yarn", "mistral-v0.1"])
def test_fused_sites_taken_apart_give_the_same_tokens_and_show_their_parts(
    name: str, checkpoint: Callable[[str], Checkpoint]
) -> None:
    c = checkpoint(name)
    selection = Selection(Library(), allow_fallback=False)
    for site in decode_sites(c):
        if site.operation in SPLITTINGS:
            selection.choose(site, SPLITTINGS[site.operation]())
    engine = c.engine(max_batch=2)
    engine.selection = engine.executor.selection = selection
    parts = [call for call in engine.executor.program(2, greedy=True).calls if call.layer == 1]
    assert [call.site.operation for call in parts][:3] == ["project_heads", "rope", "kv_append"]
    for call in parts:
        if call.site.operation in CONTRACT_OPERATIONS:
            fits(call)
    assert run(c, selection) == [greedy(c.model, p, 24) for p in (PROMPT, PROMPT[:2])]


def test_a_splitting_runs_whole_where_it_is_not_expanded(checkpoint: Callable[[str], Checkpoint]) -> None:
    program = checkpoint("qwen3").engine(max_batch=2).executor.program(2, greedy=True)
    for call in [c for c in program.calls if c.site.operation in SPLITTINGS and c.layer == 0]:
        written = [call.tensor(n) for n in ("q_out", "k_cache", "residual", "out") if n in call.tensors]
        for name in ("x", "attn", "residual"):
            if name in call.tensors:
                call.tensor(name).normal_()
        before = [t.clone() for t in written]
        Library().bind(call)()
        whole = [t.clone() for t in written]
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(old)
        SPLITTINGS[call.site.operation]().bind(call)()
        for tensor, expected in zip(written, whole, strict=True):
            torch.testing.assert_close(tensor, expected)


def right_kernel(operation: str) -> Candidate:
    """The plain kernel of the calibration corpus."""
    return read_candidate(ROOT / "tests/calibration/right" / operation, operation, Target.CPU)


@pytest.mark.parametrize("name", ["qwen3", "glm"])
def test_every_site_may_run_a_kernel_of_its_own(
    name: str, checkpoint: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> None:
    c = checkpoint(name)
    cache = CompileCache(tmp_path_factory.getbasetemp() / "images")
    selection = Selection(Library(), allow_fallback=False)
    used: list[Implementation] = []
    for site in decode_sites(c):
        kernel = KernelImplementation(right_kernel(site.operation), contracts()[site.operation], cache)
        selection.choose(site, kernel)
        used.append(kernel)
    assert run(c, selection) == [greedy(c.model, p, 24) for p in (PROMPT, PROMPT[:2])]
    assert all(implementation.digest for implementation in used)
    assert not selection.fallbacks


def test_a_kernel_that_does_not_compile_falls_back(checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    c = checkpoint("qwen3")
    good = right_kernel("residual_rmsnorm")
    bad = good.model_copy(update={"source": "this is no C++"})
    selection = Selection(Library())
    [site] = [s for s in decode_sites(c) if s.operation == "residual_rmsnorm"]
    kernel = KernelImplementation(bad, contracts()["residual_rmsnorm"], CompileCache(tmp_path))
    selection.choose(site, kernel)
    with pytest.warns(UserWarning, match="residual_rmsnorm falls back"):
        tokens = run(c, selection)
    assert tokens == [greedy(c.model, p, 24) for p in (PROMPT, PROMPT[:2])]


def test_the_library_follows_no_undefined_block_table_entry(checkpoint: Callable[[str], Checkpoint]) -> None:
    c = checkpoint("qwen3")
    program = c.engine(max_batch=2).executor.program(1, greedy=True)
    call = next(call for call in program.calls if call.site.operation == "paged_decode_attention")
    table, lengths = call.tensor("block_table"), call.tensor("seq_lens")
    call.tensor("q").normal_()
    call.tensor("k_cache").normal_()
    call.tensor("v_cache").normal_()
    outputs = []
    for fill in (0, 2**31 - 1, -5):
        table.fill_(fill)
        table[0, :2] = torch.tensor([3, 1])
        lengths.fill_(7)
        Library().bind(call)()
        outputs.append(call.tensor("out").clone())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
