"""What the store has for a pattern: kernels judged at its dims, kernels to be judged there first, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from generator.regenerate.patterns import Need, Pattern
from kb.coverage import standing
from kb.dtype import Target
from kb.library import Library
from kb.staleness import stale_reasons
from kb.store import Entry, KernelStore
from validator.extending import ExtensionError, require_current

# A new family costs a judgement a kernel and dims; the fastest few of a contract are enough to choose among.
MOST_JUDGED = 3
MOST_TEMPLATES_JUDGED = 1


class Stand(StrEnum):
    """What is known of a kernel at some dims."""

    ACCEPTED = "accepted"
    UNKNOWN = "not judged there"
    REJECTED = "rejected there"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Known:
    """One kernel of the store at the dims of one need. ``covers``: such a kernel makes a search unnecessary."""

    entry: Entry
    need: Need
    stand: Stand
    why: str
    covers: bool = True

    @property
    def digest(self) -> str:
        """The kernel's digest."""
        return self.entry.digest


def known_kernels(
    pattern: Pattern, library: Library, store: KernelStore, target: Target, *, stale: bool, hardware: str
) -> list[Known]:
    """Every admitted kernel of the pattern at every need, fastest first.

    A kernel accepted by an older contract is stale: what it computes is not what is asked for now. One whose principles
    have changed is right all the same, and stale only where ``stale`` asks for renewal. ``hardware``: a rejection for
    slowness counts where it was measured.
    """
    found = []
    for entry in store.admitted(pattern.contract.id, target):
        for need in pattern.needs:
            found.append(_known(entry, need, pattern, library, stale=stale, hardware=hardware))
    return found


def _known(entry: Entry, need: Need, pattern: Pattern, library: Library, *, stale: bool, hardware: str) -> Known:
    # Templates compete where they are measured, but they are nobody's answer to the prompt.
    covers = entry.manifest.origin.authorship != "template"
    try:
        require_current(entry, pattern.contract)
    except ExtensionError as error:
        return Known(entry, need, Stand.STALE, str(error), covers)
    reasons = stale_reasons(entry.manifest, library)
    if stale and reasons:
        return Known(entry, need, Stand.STALE, "; ".join(reasons), covers)
    stands = standing(entry.manifest, pattern.contract, need.at, need.storage)
    if stands.accepted and stands.verdict is not None:
        return Known(entry, need, Stand.ACCEPTED, f"judged {stands.verdict.judged_at.date().isoformat()}", covers)
    if stands.verdict is None:
        return Known(entry, need, Stand.UNKNOWN, "no verdict speaks of these dims", covers)
    gate = stands.verdict.failed_gate
    slow = gate is not None and gate.gate == "performance"
    if slow and stands.verdict.environment.hardware != hardware:
        return Known(entry, need, Stand.UNKNOWN, f"too slow on {stands.verdict.environment.hardware}", covers)
    return Known(entry, need, Stand.REJECTED, f"the {gate.gate.value if gate else 'a'} gate failed there", covers)


def uncovered(pattern: Pattern, known: Sequence[Known]) -> list[Need]:
    """Needs that no kernel of the store may run at."""
    covered = [k.need for k in known if k.stand is Stand.ACCEPTED and k.covers]
    return [need for need in pattern.needs if need not in covered]


def to_judge(known: Sequence[Known]) -> list[Known]:
    """Kernels to judge at dims where nothing is known of them: at each the fastest few, and the fastest template."""
    chosen: list[Known] = []
    for item in known:
        like = [k for k in known if k.need == item.need and k.covers == item.covers]
        enough = MOST_JUDGED if item.covers else MOST_TEMPLATES_JUDGED
        if item.stand is Stand.UNKNOWN and sum(k.stand is Stand.ACCEPTED or k in chosen for k in like) < enough:
            chosen.append(item)
    return chosen
