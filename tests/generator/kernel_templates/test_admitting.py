"""Accepted template kernels enter the store, and say where they come from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from generator.kernel_templates.admitting import admit_templates
from kb.candidate import Candidate
from kb.dtype import Target
from kb.library import library_root, load_library
from kb.manifest import Environment, GateName, GateResult, Outcome, Verdict
from kb.store import KernelStore

CONTRACT = load_library(library_root()).contracts["gated_mlp_down"]


def verdict_on(candidate: Candidate, accepted: bool) -> Verdict:
    return Verdict(
        candidate=candidate.digest,
        contract=candidate.contract,
        contract_version=CONTRACT.version,
        target=candidate.target,
        accepted=accepted,
        gates=(GateResult(gate=GateName.NUMERICS, outcome=Outcome.PASSED if accepted else Outcome.FAILED),),
        environment=Environment(hardware="a test machine", arch="sm_90", compiler="nvrtc"),
        seed=1,
        judged_at=datetime(2026, 11, 30, tzinfo=UTC),
    )


def test_only_accepted_candidates_are_admitted_and_marked_as_templates(tmp_path: Path) -> None:
    store = KernelStore(tmp_path)
    answers = iter([True, False, True])
    found = list(admit_templates(CONTRACT, Target.CUDA, "sm_90", store, lambda c: verdict_on(c, next(answers)), most=3))
    assert [t.admitted for t in found] == [True, False, True]
    entries = store.admitted(CONTRACT.id, Target.CUDA)
    assert {e.manifest.digest for e in entries} == {t.template.candidate.digest for t in found if t.admitted}
    assert {(e.manifest.origin.authorship, e.manifest.origin.provider) for e in entries} == {("template", "template")}
    assert all("TensorGemmParameters" in e.manifest.notes for e in entries)


def test_a_contract_without_templates_admits_nothing(tmp_path: Path) -> None:
    contract = load_library(library_root()).contracts["paged_decode_attention"]
    found = admit_templates(contract, Target.CUDA, "sm_90", KernelStore(tmp_path), lambda c: verdict_on(c, True))
    assert list(found) == []
