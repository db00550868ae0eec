"""The plans of a kind of region before the judge, and what is kept: the fastest valid one, or the framework's own.

Every plan goes through the gates briefly. The fastest that beats the framework is then judged as a whole, with every
gate and the contract's full trial; where it falls, the next is. Nothing is kept that the judge did not pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from generator.compile.survey import Kind
from generator.compile.verdicts import VerdictStore
from generator.kernel_templates.templates import instantiate
from generator.plan import Plan
from kb.candidate import Candidate
from kb.dtype import Target
from kb.manifest import Comparison, GateName, Outcome, ShapeTiming, Verdict
from validator.judge import Options, judge
from validator.worker import Worker

QUICK, WHOLE = "quick", "whole"
_ALL_BUT_TIME = tuple(g for g in GateName if g is not GateName.PERFORMANCE)


class Rule(StrEnum):
    """What is kept of a kind of region."""

    FASTEST = "fastest"  # the fastest valid plan where it is faster than the framework, else the framework
    VALID = "valid"  # the fastest valid plan even where the framework is faster; untimed, the first valid one


@dataclass(frozen=True, slots=True)
class Effort:
    """``whole``: the winner goes through the full trial. ``timed``: plans are timed. ``seconds`` bounds all judging;
    ``kinds`` bounds how many kinds of regions are judged; ``timing_seconds`` is for one timing of one plan."""

    whole: bool = True
    timed: bool = True
    seconds: float | None = None
    kinds: int | None = None
    rule: Rule = Rule.FASTEST
    timing_seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan, its candidate and what the judge said. ``failure`` is the first finding where it is not valid."""

    plan: Plan
    candidate: Candidate
    verdict: Verdict

    @property
    def timing(self) -> ShapeTiming | None:
        """Candidate and framework on the same inputs, interleaved."""
        return self.verdict.timings[0] if self.verdict.timings else None

    @property
    def failure(self) -> str:
        """Why it is not valid; empty where it is. Being slower than the framework is no failure."""
        for gate in self.verdict.gates:
            wrong = [f for f in gate.findings if f.code != "too-slow"]
            if gate.outcome is Outcome.FAILED and wrong:
                return f"{gate.gate.value}: {wrong[0].message}"
            if gate.outcome is Outcome.SKIPPED and gate.gate in _NEEDED:
                return f"{gate.gate.value}: {gate.reason}"
        return ""


_NEEDED = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs a kind of region, and why. ``chosen`` is None where the framework does."""

    kind: Kind
    judged: tuple[Judged, ...]
    chosen: Judged | None
    reason: str

    @property
    def best(self) -> Judged | None:
        """The fastest valid plan, chosen or not."""
        valid = [j for j in self.judged if not j.failure]
        return min(valid, key=_microseconds, default=None)


@dataclass(slots=True)
class Tournament:
    """Judges kinds one after the other. ``on_event`` is told (kind, text) as it goes on.

    ``lent`` is a running process of the judge, which saves its start; it is not closed.
    """

    target: Target
    effort: Effort
    store: VerdictStore
    on_event: Callable[[Kind, str], None] = lambda _kind, _text: None
    clock: Callable[[], float] = time.monotonic
    lent: Worker | None = None
    judgements: int = 0
    resumed: int = 0
    _started: float = field(init=False)
    _worker: Worker | None = None
    _kinds: int = 0

    def __post_init__(self) -> None:
        self._started = self.clock()

    @contextmanager
    def open(self) -> Iterator[Tournament]:
        """Close the judge's process at the end."""
        try:
            yield self
        finally:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def decide(self, kind: Kind) -> Decision:
        """Judge the plans of ``kind`` and choose."""
        if kind.plans is None or kind.reason:
            return Decision(kind, (), None, kind.reason or "there are no plans")
        if self.effort.kinds is not None and self._kinds >= self.effort.kinds:
            return Decision(kind, (), None, f"not judged: the budget of {self.effort.kinds} kinds of regions is spent")
        self._kinds += 1
        judged: list[Judged] = []
        for plan in kind.plans.plans:
            if self._spent():
                break
            judged.append(self._judge(kind, plan, QUICK))
            if self.effort.rule is Rule.VALID and not self.effort.timed and not judged[-1].failure:
                break
        if not judged:
            return Decision(kind, (), None, f"not judged: the budget of {self.effort.seconds:g} s is spent")
        return self._choose(kind, judged)

    def _choose(self, kind: Kind, judged: list[Judged]) -> Decision:
        ranked = sorted((j for j in judged if not j.failure), key=_microseconds)
        reason = judged[0].failure if not ranked else ""
        for candidate in ranked:
            slower = "" if self.effort.rule is Rule.VALID else _not_faster(candidate)
            if slower:
                return Decision(kind, tuple(judged), None, reason or slower)
            final = candidate
            if self.effort.whole:
                if self._spent():
                    return Decision(kind, tuple(judged), None, "the budget ended before the full trial")
                final = self._judge(kind, candidate.plan, WHOLE)
                problem = final.failure or ("" if self.effort.rule is Rule.VALID else _not_faster(final))
                if problem:
                    judged[judged.index(candidate)] = final
                    reason = problem
                    continue
            judged[judged.index(candidate)] = final
            return Decision(kind, tuple(judged), final, _why(final, self.effort.rule))
        return Decision(kind, tuple(judged), None, reason or "no plan is valid")

    def _judge(self, kind: Kind, plan: Plan, effort: str) -> Judged:
        contract = kind.contract
        assert contract is not None  # a kind with plans has one
        candidate = instantiate_plan(kind, plan, self.target)
        label = f"{effort}, timed" if self.effort.timed else effort
        if (found := self.store.find(candidate.digest, label)) is not None:
            self.resumed += 1
            self.on_event(kind, f"{plan.key}: judged before")
            return Judged(plan, candidate, found)
        self.on_event(kind, f"{plan.key}: judging")
        gates = tuple(GateName) if effort == WHOLE else tuple(g for g in GateName if g is not GateName.SANITIZER)
        if not self.effort.timed:
            gates = tuple(g for g in gates if g in _ALL_BUT_TIME)
        verdict = judge(
            candidate,
            contract.contract,
            options=Options(gates=gates, quick=effort == QUICK, timing_seconds=self.effort.timing_seconds),
            worker=self._running(),
        )
        self.judgements += 1
        self.store.keep(verdict, label)
        return Judged(plan, candidate, verdict)

    def _running(self) -> Worker:
        if self.lent is not None:
            return self.lent
        if self._worker is None:
            self._worker = Worker(self.target)
        return self._worker

    def _spent(self) -> bool:
        return self.effort.seconds is not None and self.clock() - self._started >= self.effort.seconds


def instantiate_plan(kind: Kind, plan: Plan, target: Target) -> Candidate:
    """The candidate of a plan."""
    contract, spec = kind.contract, kind.spec
    assert contract is not None
    assert spec is not None
    return instantiate(spec, plan.parameters, contract.contract, target)


def _microseconds(judged: Judged) -> float:
    return judged.timing.candidate_us if judged.timing is not None else judged.plan.cost.microseconds


def _not_faster(judged: Judged) -> str:
    """Why a valid plan is not better than the framework; empty where it is."""
    timing = judged.timing
    if timing is None:
        return "not timed: the framework stays"
    if timing.comparison is Comparison.FASTER:
        return ""
    return f"{timing.comparison.value} (ratio {timing.ratio:.3f})"


def _why(judged: Judged, rule: Rule) -> str:
    timing = judged.timing
    if timing is None:
        return "valid; asked for without timing"
    text = f"{timing.comparison.value} (ratio {timing.ratio:.3f})"
    return text if rule is Rule.FASTEST else f"asked for; {text}"


__all__ = ["QUICK", "WHOLE", "Decision", "Effort", "Judged", "Rule", "Tournament", "instantiate_plan"]
