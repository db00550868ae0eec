"""Which principles belong in a prompt: status, pattern, applicability, then the token budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kb.condition import Situation, applies
from kb.contract import Contract
from kb.principle import EvidenceKind, Kind, Principle, Status

_EVIDENCE_WORTH = {EvidenceKind.MEASURED: 2, EvidenceKind.PUBLISHED: 1, EvidenceKind.REASONED: 0}


class Blocks(StrEnum):
    """How much of what is known a prompt tells. Mandates are always told: they say what is required, not how."""

    NONE = "none"
    DECISIONS = "decisions"
    ALL = "all"

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of block that are rendered."""
        return {
            Blocks.NONE: frozenset({Kind.MANDATE}),
            Blocks.DECISIONS: frozenset({Kind.MANDATE, Kind.DECISION}),
            Blocks.ALL: frozenset(Kind),
        }[self]


@dataclass(frozen=True, slots=True)
class Choice:
    """One principle's fate. ``certain`` is False where the situation leaves its condition open."""

    principle: Principle
    included: bool
    certain: bool
    reason: str


def choose(
    contract: Contract,
    principles: Mapping[str, Principle],
    situations: Sequence[Situation],
    *,
    with_drafts: bool = False,
    kinds: frozenset[Kind] = frozenset(Kind),
) -> list[Choice]:
    """Decide every principle that names the contract, in id order.

    Several situations (one a shape to be tuned for) include a block when it may hold in at least one of them.
    """
    found = []
    for principle in sorted(principles.values(), key=lambda p: p.id):
        if contract.id not in principle.patterns:
            continue
        if principle.status is Status.DRAFT and not with_drafts:
            found.append(Choice(principle, False, True, "draft: not yet accepted"))
        elif principle.status in (Status.SUPERSEDED, Status.RETIRED):
            found.append(Choice(principle, False, True, f"{principle.status.value}: {principle.status_reason}"))
        elif principle.kind not in kinds:
            found.append(Choice(principle, False, True, f"{principle.kind.value} blocks were not asked for"))
        else:
            found.append(_decide(principle, situations))
    return found


def _decide(principle: Principle, situations: Sequence[Situation]) -> Choice:
    results = [applies(principle.when, situation) for situation in situations]
    for result in results:
        if result.holds is True:
            return Choice(principle, True, True, result.reason)
    for result in results:
        if result.holds is None:
            return Choice(principle, True, False, result.reason)
    return Choice(principle, False, True, f"does not hold: {results[0].reason}")


def relevance(choice: Choice) -> tuple[int, int, int, str]:
    """Sort key, most relevant first; a tight budget drops from the end.

    Blocks that certainly hold before those that may; then better evidence (measured, published, reasoned); then the
    ones that speak to fewer patterns, because they say more about this one; then the id, so that the order is total.
    """
    worth = max(_EVIDENCE_WORTH[e.kind] for e in choice.principle.evidence)
    return (0 if choice.certain else 1, -worth, len(choice.principle.patterns), choice.principle.id)
