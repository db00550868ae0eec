"""Plans before the judge: what is kept is valid and faster, or it is the framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generator.compile.survey import Kind
from generator.compile.tournament import QUICK, Effort, Rule, Tournament, instantiate_plan
from generator.compile.verdicts import VerdictStore
from kb.candidate import Candidate
from kb.dtype import Target
from kb.manifest import Comparison, GateName, Verdict
from validator.judge import Options, judge
from validator.worker import Worker

WHERE = "this machine"


def norm_of(kinds: tuple[Kind, ...]) -> Kind:
    return next(k for k in kinds if k.label == "LayerNorm")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, worker: Worker) -> tuple[Tournament, Path]:
    folder = tmp_path_factory.mktemp("judged")
    tournament = Tournament(
        Target.CPU, Effort(whole=False, timing_seconds=0.2), VerdictStore(folder, WHERE), lent=worker
    )
    return tournament, folder


def test_a_plan_is_kept_where_it_is_faster_and_nowhere_else(
    kinds: tuple[Kind, ...], timed: tuple[Tournament, Path]
) -> None:
    tournament, _ = timed
    with tournament.open():
        decision = tournament.decide(norm_of(kinds))
    (judged,) = decision.judged
    assert judged.failure == ""
    assert judged.timing is not None
    assert judged.timing.baseline == "framework"
    assert (decision.chosen is not None) == (judged.timing.comparison is Comparison.FASTER)
    assert f"ratio {judged.timing.ratio:.3f}" in decision.reason


def test_what_was_judged_is_not_judged_again(kinds: tuple[Kind, ...], timed: tuple[Tournament, Path]) -> None:
    _, folder = timed
    again = Tournament(Target.CPU, Effort(whole=False), VerdictStore(folder, WHERE))
    with again.open():
        decision = again.decide(norm_of(kinds))
    assert (again.judgements, again.resumed) == (0, 1)
    assert decision.judged


def test_a_verdict_of_another_machine_or_a_damaged_one_counts_as_absent(
    kinds: tuple[Kind, ...], timed: tuple[Tournament, Path], tmp_path: Path
) -> None:
    _, folder = timed
    kind = norm_of(kinds)
    assert kind.plans is not None
    digest = instantiate_plan(kind, kind.plans.plans[0], Target.CPU).digest
    (path,) = folder.iterdir()
    assert VerdictStore(folder, WHERE).find(digest, f"{QUICK}, timed") is not None
    assert VerdictStore(folder, "another").find(digest, f"{QUICK}, timed") is None
    assert VerdictStore(folder, WHERE).find(digest, "whole") is None
    for damage in (path.read_text()[:200], "[]", json.dumps({"format": 1, "where": WHERE, "verdict": {}})):
        (tmp_path / path.name).write_text(damage)
        assert VerdictStore(tmp_path, WHERE).find(digest, f"{QUICK}, timed") is None


def test_a_spent_budget_leaves_the_framework(kinds: tuple[Kind, ...], tmp_path: Path) -> None:
    none = Tournament(Target.CPU, Effort(kinds=0), VerdictStore(tmp_path, WHERE))
    out_of_time = Tournament(Target.CPU, Effort(seconds=0.0), VerdictStore(tmp_path, WHERE))
    for tournament in (none, out_of_time):
        decision = tournament.decide(norm_of(kinds))
        assert decision.chosen is None
        assert "budget" in decision.reason
        assert tournament.judgements == 0


def test_a_region_without_plans_keeps_the_framework_with_the_reason(kinds: tuple[Kind, ...], tmp_path: Path) -> None:
    blocked = Kind("r9", norm_of(kinds).members, (), reason="it returns integers")
    decision = Tournament(Target.CPU, Effort(), VerdictStore(tmp_path, WHERE)).decide(blocked)
    assert (decision.chosen, decision.reason) == (None, "it returns integers")


def wrong_ones(right: Candidate) -> dict[str, Candidate]:
    """Kernels that leave something out: each the template's own source with one thing changed."""
    source = right.source
    changed = {
        "a doubled result": source.replace("from_float<T>(", "from_float<T>(2.0f * ", 1),
        "a row too few": source.replace("row < rows", "row < rows - 1", 1),
    }
    assert all(text != source for text in changed.values())
    return {name: right.model_copy(update={"source": text}) for name, text in changed.items()}


def test_a_wrong_kernel_of_a_region_is_rejected_by_the_same_gates(kinds: tuple[Kind, ...], worker: Worker) -> None:
    kind = norm_of(kinds)
    assert kind.plans is not None
    assert kind.contract is not None
    right = instantiate_plan(kind, kind.plans.plans[0], Target.CPU)
    gates = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)
    verdicts: dict[str, Verdict] = {
        name: judge(candidate, kind.contract.contract, options=Options(gates=gates, quick=True), worker=worker)
        for name, candidate in wrong_ones(right).items()
    }
    for name, verdict in verdicts.items():
        assert verdict.failed_gate is not None, name
        assert verdict.failed_gate.gate in (GateName.INTERFACE, GateName.NUMERICS), name


def test_untimed_the_first_valid_plan_is_taken_only_where_that_was_asked_for(
    kinds: tuple[Kind, ...], tmp_path: Path, worker: Worker
) -> None:
    effort = Effort(whole=False, timed=False, rule=Rule.VALID)
    tournament = Tournament(Target.CPU, effort, VerdictStore(tmp_path, WHERE), lent=worker)
    strict = Tournament(Target.CPU, Effort(whole=False, timed=False), VerdictStore(tmp_path, WHERE))
    with tournament.open(), strict.open():
        taken = tournament.decide(norm_of(kinds))
        refused = strict.decide(norm_of(kinds))
    assert taken.chosen is not None
    assert refused.chosen is None
    assert strict.resumed == 1
    assert "not timed" in refused.reason
