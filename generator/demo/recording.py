"""What a kernel's transcript says of the search that made it, in the form in which it can be played again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generator.history import Attempt
from generator.render import Request
from generator.search import Plan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import Finding, Outcome
from kb.principle import Principle

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """The author's replies of one lane, under the keys that a search with one lane asks for, and what it asked for."""

    contract: str
    request: Request
    rounds: int
    model: str
    replies: tuple[dict[str, Any], ...]

    def plan(self, contract: Contract, principles: Mapping[str, Principle]) -> Plan:
        """The search to play: every recorded round, whatever came before it."""
        return Plan(contract, principles, self.request, self.rounds, improve=True)


def read_recording(events: Sequence[Event]) -> Recording:
    """From a transcript's events. Raises ValueError when they hold no search or no reply."""
    opening = next((e for e in events if e.get("event") == "search"), None)
    replies = [dict(e) for e in events if e.get("event") == "reply"]
    if opening is None or not replies:
        raise ValueError("the transcript holds no search with replies")
    request = Request(
        target=Target(opening["target"]),
        arch=opening["arch"],
        dims=tuple(opening["dims"]),
        dtype=DType(opening["dtype"]) if opening["dtype"] else None,
    )
    alone = tuple(reply | {"key": f"round-{n}-lane-1", "lane": 0} for n, reply in enumerate(replies, 1))
    return Recording(opening["contract"], request, len(replies), replies[-1]["completion"]["model"], alone)


def narrowed(contract: Contract, storage: DType, shapes: Sequence[Mapping[str, int]]) -> Contract:
    """The contract for one storage type, with ``shapes`` (whole ones of its dims) added to those that must be right.

    What is accepted by it is accepted for that type only, and its digest is not the shipped contract's. Raises
    ValueError for a shape the contract does not allow.
    """
    for shape in shapes:
        contract.check_dims(shape)
    known = list(contract.sweep.correctness)
    known += [dict(shape) for shape in shapes if dict(shape) not in known]
    sweep = contract.sweep.model_copy(update={"correctness": tuple(known)})
    dtypes = contract.dtypes.model_copy(update={"storage": (storage,)})
    return contract.model_copy(update={"sweep": sweep, "dtypes": dtypes})


def outcome(attempt: Attempt) -> str:
    """One line: accepted and how fast, or what stopped it with the first thing that was found."""
    verdict = attempt.verdict
    if verdict is None:
        return f"unusable reply: {_first(attempt.findings)}"
    if verdict.accepted:
        speeds = (f"{t.ratio:.2f}x {t.baseline} at {_dims(t.dims)}" for t in verdict.timings)
        return "accepted; " + ", ".join(speeds)
    failed = verdict.failed_gate
    if failed is not None:
        return f"rejected by {failed.gate.value}: {_first(failed.findings)}"
    skipped = [f"{g.gate.value} ({g.reason})" for g in verdict.gates if g.outcome is Outcome.SKIPPED]
    return "not accepted; skipped: " + ", ".join(skipped or ["nothing, but the trial was partial"])


def _first(findings: Sequence[Finding]) -> str:
    return " ".join(findings[0].message.split())[:160] if findings else "no diagnostic"


def _dims(dims: Mapping[str, int]) -> str:
    return "x".join(str(value) for value in dims.values())
