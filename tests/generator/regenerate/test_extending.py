"""Verdicts at other dims: what they mean, how they are recorded, and the trial that makes them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from kb.cli.failure import Failure
from kb.contract import DimKind
from kb.coverage import compile_dims, standing
from kb.digest import meaning_digest
from kb.dtype import DType, Target
from kb.manifest import GateName, GateResult, Manifest, Outcome, Verdict
from kb.store import KernelStore, StoreError
from runtime.engine.selecting import judged_at
from runtime.engine.step_sites import features_of, sites_of_buckets, step_sites
from runtime.models.spec import read_spec
from runtime.sites import Site
from tests.runtime.engine.admitted import ROOT, contracts, manifest, right_kernel
from validator.cli.validate import command
from validator.extending import Trial, extend
from validator.gates import Options
from validator.gates.numerics import _Tally
from validator.judge import judge
from validator.shapes import held_shapes, held_timed

CONTRACT = contracts()["residual_rmsnorm"]
WHOLE = {"num_tokens": 1, "hidden_size": 2048, "has_residual": 1}
THERE = {"num_tokens": 1, "hidden_size": 64, "has_residual": 0}
BF16 = DType.BFLOAT16

APP = typer.Typer()
APP.command()(command)


def stored(root: Path) -> tuple[KernelStore, Manifest]:
    """A store with the corpus' kernel, accepted as a whole at WHOLE."""
    kernel = right_kernel(CONTRACT.id)
    made = manifest(kernel, WHOLE, BF16).model_copy(update={"contract_digest": meaning_digest(CONTRACT)})
    store = KernelStore(root / "kernels")
    store.admit(kernel, made)
    return store, made


def verdict(made: Manifest, *, accepted: bool, gate: GateName, second: int) -> Verdict:
    """A verdict at THERE, ``second`` after the admission."""
    first = made.verdicts[0]
    outcome = Outcome.PASSED if accepted else Outcome.FAILED
    errors = (first.errors[0].model_copy(update={"dims": THERE}),)
    update = {"accepted": accepted, "gates": (GateResult(gate=gate, outcome=outcome),), "at": THERE, "errors": errors}
    return first.model_copy(update=update | {"judged_at": first.judged_at + timedelta(seconds=second)})


def offered(store: KernelStore) -> bool:
    """Whether an engine would offer the stored kernel at THERE."""
    (entry,) = store.admitted(CONTRACT.id, Target.CPU)
    site = Site(CONTRACT.id, tuple(sorted(THERE.items())), BF16)
    return judged_at(entry.manifest, CONTRACT, site)


def test_the_newest_verdict_about_some_dims_decides_and_slowness_takes_nothing_away(tmp_path: Path) -> None:
    store, made = stored(tmp_path)
    assert not offered(store)
    steps = [
        (False, GateName.PERFORMANCE, False),
        (True, GateName.NUMERICS, True),
        (False, GateName.PERFORMANCE, True),
        (False, GateName.INTERFACE, False),
        (True, GateName.NUMERICS, True),
    ]
    for second, (accepted, gate, expected) in enumerate(steps, start=1):
        store.record(made.digest[:8], verdict(made, accepted=accepted, gate=gate, second=second))
        assert offered(store) is expected
    (entry,) = store.entries()[0]
    assert len(entry.manifest.verdicts) == 6
    assert entry.manifest.acceptance == made.verdicts[0]
    assert standing(entry.manifest, CONTRACT, WHOLE, BF16).accepted
    assert standing(entry.manifest, CONTRACT, THERE, DType.FLOAT16).verdict is not None


def test_a_verdict_about_some_dims_admits_nothing_and_reinstates_nothing(tmp_path: Path) -> None:
    store, made = stored(tmp_path)
    there = verdict(made, accepted=True, gate=GateName.NUMERICS, second=1)
    other = KernelStore(tmp_path / "other")
    with pytest.raises(StoreError, match="some dims alone"):
        other.admit(right_kernel(CONTRACT.id), made.model_copy(update={"verdicts": (there,)}))
    with pytest.raises(StoreError, match="another kernel"):
        store.record(made.digest, there.model_copy(update={"candidate": "0" * 64}))
    store.revoke(made.digest, "wrong")
    with pytest.raises(StoreError, match="revoked"):
        store.record(made.digest, there)
    with pytest.raises(StoreError, match="whole verdict"):
        store.reinstate(made.digest, there)


@pytest.mark.parametrize("contract", contracts().values(), ids=lambda c: c.id)
def test_held_shapes_have_the_held_dims_and_are_allowed(contract) -> None:  # type: ignore[no-untyped-def]
    here = compile_dims(contract, contract.sweep.correctness[1])
    free = contract.dims_of(DimKind.RUNTIME, DimKind.WORKLOAD)
    for shapes in (held_shapes(contract, here, 3, 4), held_timed(contract, here)):
        assert shapes
        for shape in shapes:
            contract.check_dims(shape.dims)
            assert compile_dims(contract, shape.dims) == here
        assert len({tuple(s.dims[n] for n in free) for s in shapes}) == len(shapes)
    assert held_shapes(contract, here, 3, 4) == held_shapes(contract, here, 3, 4)


def test_attention_at_held_dims_is_tried_at_contexts_nobody_was_told() -> None:
    contract = contracts()["paged_decode_attention"]
    shapes = held_shapes(contract, compile_dims(contract, contract.sweep.correctness[0]), 1, 4)
    assert len([s for s in shapes if s.hidden]) == 4
    assert len({s.dims["context_len"] for s in shapes}) > 4


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"num_tokens": 1, "hidden_size": 64}, "'has_residual' has no value"),
        ({**THERE, "eps": 1}, "'eps' is not compiled into"),
        ({**THERE, "hidden_size": 63}, "constraint"),
    ],
)
def test_dims_that_cannot_be_held_are_one_clear_error(at: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(right_kernel(CONTRACT.id), CONTRACT, options=Options(at=at))


def test_sites_of_a_spec_are_those_of_the_engines_step() -> None:
    from generator.demo.decoding import open_tiny

    spec = read_spec(ROOT / "models/tiny-qwen3")
    places = step_sites(spec, 1, spec.dtype)
    with open_tiny(ROOT / "models/tiny-qwen3") as engine:
        calls = engine.executor.build(1, greedy=True).calls
        real = list(dict.fromkeys(c.site for c in calls if c.site.operation in contracts()))
    held = [compile_dims(contracts()[s.operation], dict(s.dims)) for s in real]
    mine = [p.site for p in places if p.part_of is None]
    assert [s.operation for s in mine] == [s.operation for s in real]
    assert [compile_dims(contracts()[s.operation], dict(s.dims)) for s in mine] == held
    assert [p.calls for p in places if p.site.operation == "gated_mlp_up"] == [4]
    assert {p.site.operation for p in places if p.part_of} == {"rope", "kv_append", "residual_rmsnorm"}
    assert features_of(spec) == {"gqa", "qk_norm", "tied_embeddings"}
    assert len(sites_of_buckets(spec, (1, 2), spec.dtype)) == 2 * len(places)


def run(*arguments: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(APP, list(arguments))


def test_a_stored_kernel_is_judged_at_held_dims_and_offered_there_afterwards(tmp_path: Path) -> None:
    store, _ = stored(tmp_path)
    (entry,) = store.entries()[0]
    options = Options(hidden=1, timing_seconds=0.2)
    told = extend(entry, CONTRACT, Trial(THERE, DType.FLOAT16), store=store, options=options)
    assert told.at == THERE
    gates = {g.gate: g.outcome for g in told.gates}
    before_the_clock = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)
    assert [gates[n] for n in before_the_clock] == ["passed"] * 4
    assert {e.dtype for e in told.errors} == set(CONTRACT.dtypes.storage)
    assert all(e.dims == THERE for e in told.errors)
    assert {t.dtype for t in told.timings} == {DType.FLOAT16}
    assert len(store.entries()[0][0].manifest.verdicts) == 2
    assert offered(store) == told.accepted


def test_a_single_index_that_changes_with_the_input_is_evidence() -> None:
    at = {"num_tokens": 1, "hidden_size": 64, "vocab_size": 257}
    gates = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)
    options = Options(at=at, gates=gates, storages=(BF16,), hidden=0)
    made = judge(right_kernel("lm_head_argmax"), contracts()["lm_head_argmax"], options=options)
    assert made.failed_gate is None
    assert [g.outcome for g in made.gates if g.gate is GateName.NUMERICS] == ["passed"]


def test_outputs_that_never_change_are_no_evidence() -> None:
    tally = _Tally()
    for _ in range(3):
        tally.saw({"index": torch.tensor([7]), "rows": torch.zeros(4), "odd": torch.tensor([float("nan")])}, BF16)
    assert not tally.telling
    tally.saw({"index": torch.tensor([7])}, DType.FLOAT32)
    assert not tally.telling
    tally.saw({"index": torch.tensor([8])}, BF16)
    assert tally.telling


def test_a_trial_that_is_not_whole_is_neither_accepted_nor_recorded(tmp_path: Path) -> None:
    store, made = stored(tmp_path)
    dims = ",".join(f"{k}={v}" for k, v in THERE.items())
    few = ["--gates", "static,compile", "--dims", dims, "--record", "--store", str(store.root)]
    result = run(made.digest[:10], *few, "--json")
    (told,) = json.loads(result.stdout)
    assert (result.exit_code, told["at"], told["accepted"]) == (0, THERE, False)
    assert "not recorded" in run(made.digest[:10], *few).stdout
    assert len(store.entries()[0][0].manifest.verdicts) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dims", "hidden_size=64"], "'num_tokens' has no value"),
        (["--model", "/nonexistent"], "config.json: cannot be read"),
        (["--dims", "num_tokens=1", "--model", "x"], "give one of them"),
    ],
)
def test_bad_requests_for_stored_kernels_are_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    store, made = stored(tmp_path)
    result = run(made.digest[:10], *arguments, "--store", str(store.root))
    assert isinstance(result.exception, Failure)
    assert message in str(result.exception)


def test_a_kernel_of_a_contract_that_has_changed_is_not_extended(tmp_path: Path) -> None:
    kernel = right_kernel(CONTRACT.id)
    KernelStore(tmp_path).admit(kernel, manifest(kernel, WHOLE, BF16))
    result = run(kernel.digest[:10], "--store", str(tmp_path))
    assert "which has changed since" in str(result.exception)
    folder = run(str(tmp_path), "--record")
    assert "for stored kernels" in str(folder.exception)
