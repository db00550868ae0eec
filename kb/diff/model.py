"""What a semantic diff is made of. Plain data: it prints as text, Markdown and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kb.diff.scope import Relation
from kb.library import EntryKind


class What(StrEnum):
    """What happened to an entry between the two revisions."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    CHANGED = "changed"
    UNREADABLE = "unreadable"  # on one side at least; nothing more can be said


class ChangeClass(StrEnum):
    """What kind of change a field went through, weightiest first."""

    REVERSED = "decision reversed"
    INTERFACE = "interface change"
    NUMERICS = "numerics change"
    CLAIM = "claim changed"
    SHIFTED = "applicability shifted"
    UNDECIDED = "applicability changed, direction not decided"
    NARROWED = "applicability narrowed"
    WIDENED = "applicability widened"
    JUDGEMENT = "judgement change"
    EFFECT = "effect changed"
    STATUS = "status change"
    EVIDENCE_REMOVED = "evidence removed"
    EVIDENCE_CHANGED = "evidence changed"
    EVIDENCE_ADDED = "evidence added"
    LINKS = "links changed"
    EDITORIAL = "editorial"


class Bump(StrEnum):
    """Whether ``version`` followed the change of meaning."""

    NOT_NEEDED = "not needed"
    BUMPED = "bumped"
    MISSING = "missing"  # the meaning changed, the version did not
    NEEDLESS = "needless"  # the version changed, the meaning did not
    LOWERED = "lowered"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, by its dotted path; a value of None means absent. Values are JSON data."""

    path: str
    before: Any
    after: Any
    kind: ChangeClass


@dataclass(frozen=True, slots=True)
class EntryChange:
    """Everything that happened to one entry.

    ``previous_id`` is set for a rename. ``applicability`` compares all conditions taken together, which may say more
    than the fields one by one. ``note`` is one sentence for what no field shows.
    """

    kind: EntryKind
    id: str
    what: What
    title: str
    previous_id: str | None = None
    version_before: int | None = None
    version_after: int | None = None
    bump: Bump = Bump.NOT_NEEDED
    applicability: Relation = Relation.EQUAL
    superseded_by: str | None = None
    fields: tuple[FieldChange, ...] = ()
    classes: tuple[ChangeClass, ...] = ()
    note: str = ""

    @property
    def is_editorial(self) -> bool:
        """True for a change that means nothing."""
        return self.what is What.CHANGED and set(self.classes) <= {ChangeClass.EDITORIAL}


@dataclass(frozen=True, slots=True)
class LibraryDiff:
    """All entries that differ, principles first, each sort by id."""

    base: str
    head: str
    entries: tuple[EntryChange, ...]

    def of(self, kind: EntryKind, what: What | None = None) -> tuple[EntryChange, ...]:
        """Entries of one sort, and of one fate where it is given."""
        return tuple(e for e in self.entries if e.kind is kind and what in (None, e.what))

    def as_json(self) -> dict[str, Any]:
        """The diff as JSON data."""
        return asdict(self)
