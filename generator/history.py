"""What happened so far, as the changing end of the next prompt: structured diagnostics, then the best kernel yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb.candidate import Candidate
from kb.manifest import Finding, GateResult, Outcome, ShapeTiming, Verdict
from kb.yaml.write import dump_yaml

MAX_FINDINGS = 12


@dataclass(frozen=True, slots=True)
class Attempt:
    """One round of one lane: what came back and how it was judged.

    ``candidate`` and ``verdict`` are None where the reply held no candidate; ``findings`` then say why.
    """

    round: int
    lane: int
    candidate: Candidate | None
    verdict: Verdict | None
    findings: tuple[Finding, ...] = ()

    @property
    def ratio(self) -> float:
        """Worst T_baseline / T_candidate over the timed shapes; 0 where the candidate was not timed."""
        if self.verdict is None or not self.verdict.timings:
            return 0.0
        return min(t.ratio for t in self.verdict.timings)

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Order among attempts: accepted ones first, then how many gates were passed, then speed."""
        if self.verdict is None:
            return (False, -1, 0.0)
        passed = sum(1 for g in self.verdict.gates if g.outcome is Outcome.PASSED)
        return (self.verdict.accepted, passed, self.ratio)


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The best attempt that held a candidate; the earlier one on a tie."""
    return max((a for a in attempts if a.candidate), key=lambda a: a.rank, default=None)


def history_section(
    attempts: Sequence[Attempt], lane: int, lanes: int, *, floor: float, seed: Candidate | None = None
) -> str:
    """The history for the next question to ``lane``; empty before anything happened in a search of one lane."""
    parts: list[str] = []
    mine = [a for a in attempts if a.lane == lane]
    if seed is not None and not mine:
        parts.append(
            "# A kernel to start from\n\nIt was admitted for another model or architecture. Keep what serves the "
            "shapes above, change what does not.\n\n" + _source(seed)
        )
    if lanes > 1 and not mine:
        parts.append(
            f"# Your lane\n\nYou are author {lane + 1} of {lanes} who answer this question side by side. "
            "Prefer a main idea that the others may not try first.\n"
        )
    if mine:
        parts.append("# What was tried\n")
        parts += [_attempt(a, detailed=a is mine[-1]) for a in mine]
        parts += _sources(attempts, mine, lane)
        parts.append(_request(mine[-1], best_of(attempts), floor))
    return "\n" + "\n".join(parts) if parts else ""


def _attempt(attempt: Attempt, *, detailed: bool) -> str:
    head = f"## Round {attempt.round}"
    if attempt.verdict is None:
        lines = [f"{head}: the reply could not be used"] + [f"- {f.message}" for f in attempt.findings]
        return "\n".join(lines) + "\n"
    failed = attempt.verdict.failed_gate
    verdict = "accepted" if attempt.verdict.accepted else f"stopped at gate {failed.gate.value if failed else '?'}"
    lines = [f"{head}: {verdict}"]
    if detailed:
        if failed is not None:
            lines += [_finding(f) for f in failed.findings[:MAX_FINDINGS]]
            if len(failed.findings) > MAX_FINDINGS:
                lines.append(f"- and {len(failed.findings) - MAX_FINDINGS} more of the same gate")
        lines += [line for g in attempt.verdict.gates for line in _measured(g)]
        lines += timing_lines(attempt.verdict.timings)
    elif failed is not None and failed.findings:
        lines.append(_finding(failed.findings[0]))
    elif attempt.ratio:
        lines.append(f"- slowest shape: {attempt.ratio:.3f} of the strongest baseline")
    return "\n".join(lines) + "\n"


def timing_lines(timings: Sequence[ShapeTiming]) -> list[str]:
    """A table of times against baseline and bandwidth floor; empty without timings."""
    if not timings:
        return []
    rows = [
        "",
        "| shape | T | yours µs | strongest baseline µs | ratio | bandwidth floor µs | share of floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for t in timings:
        shape = ", ".join(f"{k}={v}" for k, v in t.dims.items())
        rows.append(
            f"| {shape} | {t.dtype.value} | {t.candidate_us:.2f} | {t.baseline_us:.2f} ({t.baseline}) | {t.ratio:.3f} "
            f"{t.comparison.value} | {t.floor_us:.2f} | {t.bandwidth_share:.0%} |"
        )
    return rows


def _finding(finding: Finding) -> str:
    place = []
    if finding.line is not None:
        place.append(f"line {finding.line}")
    if finding.tensor is not None:
        index = "[" + ", ".join(map(str, finding.index)) + "]" if finding.index else ""
        place.append(f"{finding.tensor}{index}")
    if finding.shape:
        place.append("at " + ", ".join(f"{k}={v}" for k, v in finding.shape.items()))
    if finding.distribution:
        place.append(f"on {finding.distribution} inputs")
    where = f" ({'; '.join(place)})" if place else ""
    return f"- {finding.code}: {finding.message}{where}"


def _measured(gate: GateResult) -> list[str]:
    """Compiler facts worth knowing whichever gate failed: registers, spills, shared memory."""
    resources = gate.details.get("resources")
    if not isinstance(resources, dict):
        return []
    return [
        f"- {entry}: " + ", ".join(f"{k} {v}" for k, v in sorted(facts.items())) for entry, facts in resources.items()
    ]


def _sources(attempts: Sequence[Attempt], mine: Sequence[Attempt], lane: int) -> list[str]:
    best = best_of(attempts)
    last = mine[-1]
    parts = []
    if best is not None and best.candidate is not None:
        whose = "yours" if best.lane == lane else "another author's"
        title = f"# The best so far: round {best.round}, {whose}"
        measured = "\n".join(timing_lines(best.verdict.timings)) if best.verdict and best is not last else ""
        parts.append(f"{title}\n{measured}\n\n{_source(best.candidate)}")
    if last.candidate is not None and last is not best:
        parts.append(f"# Your last candidate: round {last.round}\n\n{_source(last.candidate)}")
    return parts


def _source(candidate: Candidate) -> str:
    plan = candidate.plan.model_dump(mode="json", exclude_defaults=True)
    return f"<source>\n{candidate.source}</source>\n<plan>\n{dump_yaml(plan, flow_leaves=True)}</plan>\n"


def _request(last: Attempt, best: Attempt | None, floor: float) -> str:
    if last.verdict is None or not last.verdict.accepted:
        if best is not None and best is not last and best.verdict is not None and best.verdict.accepted:
            goal = f"The best so far stands at {best.ratio:.3f}; make one that is right and faster."
        else:
            goal = "Find the cause of what is reported above, mend it, and reply with the complete kernel again."
    else:
        goal = f"It is accepted (at least {floor:g}). Reply with a complete kernel that is faster still."
    return f"# Now\n\n{goal}\n"
