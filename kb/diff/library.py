"""The semantic diff of two libraries: which entries came, went, were renamed or changed, and what that means."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kb.contract import Contract
from kb.diff.contract import contract_applicability, contract_changes
from kb.diff.model import Bump, ChangeClass, EntryChange, FieldChange, LibraryDiff, What
from kb.diff.principle import applicability, principle_changes
from kb.diff.scope import Relation
from kb.digest import folded, meaning_digest
from kb.library import EntryKind, Library
from kb.principle import Kind, Principle, Status

Entry = Principle | Contract

# Share of words in common from which a removed and an added entry are taken to be one, renamed.
_SAME_ENTRY = 0.7
_PAIRS_LIMIT = 20_000
_NO_NEWS = frozenset({ChangeClass.EDITORIAL, ChangeClass.LINKS, ChangeClass.STATUS})
_ORDER = {kind: i for i, kind in enumerate(ChangeClass)}


def diff_libraries(old: Library, new: Library, *, base: str = "base", head: str = "head") -> LibraryDiff:
    """Compare two libraries.

    A file that could not be read on one side is listed as unreadable, never as added or removed.
    """
    unreadable = _unreadable(old, new, base, head)
    entries = [
        *_diff(EntryKind.PRINCIPLE, old.principles, new.principles, unreadable[EntryKind.PRINCIPLE]),
        *_diff(EntryKind.CONTRACT, old.contracts, new.contracts, unreadable[EntryKind.CONTRACT]),
    ]
    return LibraryDiff(base, head, tuple(_with_reversals(entries, old, new)))


def diff_entry(old: Entry, new: Entry) -> EntryChange | None:
    """What changed from ``old`` to ``new``, two versions of one entry; None where nothing did."""
    if isinstance(old, Principle) and isinstance(new, Principle):
        kind, fields, relation = EntryKind.PRINCIPLE, principle_changes(old, new), applicability(old, new)
    elif isinstance(old, Contract) and isinstance(new, Contract):
        kind, fields, relation = EntryKind.CONTRACT, contract_changes(old, new), contract_applicability(old, new)
    else:
        raise TypeError("two versions of one entry are of one kind")
    if old == new and not fields:
        return None
    fields = tuple(f for f in fields if f.path != "id")
    classes = _classes(fields)
    return EntryChange(
        kind=kind,
        id=new.id,
        what=What.CHANGED if old.id == new.id else What.RENAMED,
        title=new.title,
        previous_id=None if old.id == new.id else old.id,
        version_before=old.version,
        version_after=new.version,
        bump=_bump(old, new, classes),
        applicability=relation,
        superseded_by=_successor(new) if _successor(old) != _successor(new) else None,
        fields=fields,
        classes=classes,
    )


def _diff(
    kind: EntryKind, old: Mapping[str, Entry], new: Mapping[str, Entry], unreadable: Mapping[str, str]
) -> list[EntryChange]:
    found = [change for id_ in old.keys() & new.keys() if (change := diff_entry(old[id_], new[id_])) is not None]
    removed = sorted(old.keys() - new.keys() - unreadable.keys())
    added = sorted(new.keys() - old.keys() - unreadable.keys())
    for before, after in _renames(old, new, removed, added):
        change = diff_entry(old[before], new[after])
        assert change is not None  # the ids differ
        found.append(change)
        removed.remove(before)
        added.remove(after)
    found += [_whole(kind, old[id_], What.REMOVED) for id_ in removed]
    found += [_whole(kind, new[id_], What.ADDED) for id_ in added]
    found += [EntryChange(kind, id_, What.UNREADABLE, "", note=reason) for id_, reason in unreadable.items()]
    return sorted(found, key=lambda e: e.id)


def _unreadable(old: Library, new: Library, base: str, head: str) -> dict[EntryKind, dict[str, str]]:
    """Id (by path) and reason of every file that could not be read on a side, unless both sides hold the same text."""
    found: dict[EntryKind, dict[str, str]] = {kind: {} for kind in EntryKind}
    before, after = ({e.path: e for e in library.entries if e.model is None} for library in (old, new))
    for label, mine, others in ((base, before, after), (head, after, before)):
        for path, entry in mine.items():
            if path in others and others[path].document.text == entry.document.text:
                continue
            first = entry.findings[0] if entry.findings else "no reason given"
            found[entry.kind][path.split("/", 1)[1].removesuffix(".yaml")] = f"at {label}: {first}"
    return found


def _whole(kind: EntryKind, entry: Entry, what: What) -> EntryChange:
    return EntryChange(
        kind,
        entry.id,
        what,
        entry.title,
        version_before=entry.version if what is What.REMOVED else None,
        version_after=entry.version if what is What.ADDED else None,
        superseded_by=_successor(entry),
    )


def _renames(
    old: Mapping[str, Entry], new: Mapping[str, Entry], removed: Sequence[str], added: Sequence[str]
) -> list[tuple[str, str]]:
    """Pairs of a removed and an added id that are one entry: the same meaning, or most of the same words."""
    pairs = []
    digests = {meaning_digest(new[id_]): id_ for id_ in added}
    for id_ in removed:
        same = digests.pop(meaning_digest(old[id_]), None)
        if same is not None:
            pairs.append((id_, same))
    gone = [id_ for id_ in removed if id_ not in {before for before, _ in pairs}]
    came = [id_ for id_ in added if id_ not in {after for _, after in pairs}]
    if len(gone) * len(came) > _PAIRS_LIMIT:
        return pairs
    for id_ in gone:
        scored = [(_likeness(old[id_], new[other]), other) for other in came]
        score, best = max(scored, default=(0.0, ""))
        if score >= _SAME_ENTRY:
            pairs.append((id_, best))
            came.remove(best)
    return pairs


def _likeness(a: Entry, b: Entry) -> float:
    words_a, words_b = _words(a), _words(b)
    matcher = difflib.SequenceMatcher(None, words_a, words_b, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= _SAME_ENTRY else 0.0


def _words(entry: Entry) -> list[str]:
    if isinstance(entry, Principle):
        return folded(f"{entry.title} {entry.claim} {entry.why}").split()
    return folded(f"{entry.title} {entry.summary} {entry.semantics}").split()


def _bump(old: Entry, new: Entry, classes: Collection[ChangeClass]) -> Bump:
    moved = meaning_digest(old) != meaning_digest(new)
    if new.version < old.version:
        return Bump.LOWERED
    if new.version > old.version:
        return Bump.NEEDLESS if not moved and set(classes) <= _NO_NEWS else Bump.BUMPED
    # A draft speaks to nobody yet: it may change freely until it is accepted.
    return Bump.MISSING if moved and old.status is not Status.DRAFT else Bump.NOT_NEEDED


def _successor(entry: Entry) -> str | None:
    return entry.superseded_by if isinstance(entry, Principle) else None


def _classes(fields: Collection[FieldChange]) -> tuple[ChangeClass, ...]:
    return tuple(sorted({f.kind for f in fields}, key=_ORDER.__getitem__))


def _with_reversals(entries: list[EntryChange], old: Library, new: Library) -> list[EntryChange]:
    """A new block that replaces one of the opposite kind reverses a decision, although no field of it changed."""
    known = {**old.principles, **new.principles}
    result = []
    for entry in entries:
        block = new.principles.get(entry.id) if entry.what is What.ADDED else None
        replaced = [known[id_] for id_ in block.supersedes if id_ in known] if block is not None else []
        turned = [
            r.id for r in replaced if block is not None and (block.kind is Kind.DEAD_END) != (r.kind is Kind.DEAD_END)
        ]
        if turned:
            note = f"replaces {', '.join(turned)}, which says the opposite"
            entry = replace(entry, classes=(ChangeClass.REVERSED,), note=note)
        result.append(entry)
    return result


__all__ = ["Relation", "diff_entry", "diff_libraries"]
