"""What changed between two versions of one principle, field by field, each change classified."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from kb.condition import When
from kb.diff.fields import differing_fields
from kb.diff.model import ChangeClass, FieldChange
from kb.diff.scope import Relation, Scope, compare, scope_of_when
from kb.digest import PRINCIPLE_PROSE, folded
from kb.principle import Effect, Evidence, Kind, Principle

OF_RELATION = {
    Relation.NARROWED: ChangeClass.NARROWED,
    Relation.WIDENED: ChangeClass.WIDENED,
    Relation.SHIFTED: ChangeClass.SHIFTED,
    Relation.UNKNOWN: ChangeClass.UNDECIDED,
    # Written differently, holding in the same situations.
    Relation.EQUAL: ChangeClass.EDITORIAL,
}
_BY_FIELD = {
    "status": ChangeClass.STATUS,
    "status_reason": ChangeClass.STATUS,
    "supersedes": ChangeClass.STATUS,
    "superseded_by": ChangeClass.STATUS,
    "related": ChangeClass.LINKS,
    "references": ChangeClass.LINKS,
}
_NEGATIONS = frozenset({"do", "not", "never", "don't", "dont", "avoid", "no", "cannot", "can't"})
# Shares of words in common from which two evidence texts are taken to be one text, edited.
_SAME_EVIDENCE = 0.6


def principle_changes(old: Principle, new: Principle) -> tuple[FieldChange, ...]:
    """Every field that differs, in the model's order. ``version`` is left to the caller."""
    before, after = (p.model_dump(mode="json") for p in (old, new))
    found: list[FieldChange] = []
    for name in type(new).model_fields:
        if name == "version" or before[name] == after[name]:
            continue
        if name == "when":
            found += _when_changes(old.when, new.when)
        elif name == "evidence":
            found += _evidence_changes(old.evidence, new.evidence)
        elif name == "related":
            found += [FieldChange(p, a, b, ChangeClass.LINKS) for p, a, b in differing_fields(*_side(name, old, new))]
        else:
            found.append(FieldChange(name, before[name], after[name], _classify(name, old, new)))
    return tuple(found)


def applicability(old: Principle, new: Principle) -> Relation:
    """All conditions taken together, the contracts it speaks to included."""
    return compare(_scope(old), _scope(new))


def _scope(principle: Principle) -> Scope:
    scope = scope_of_when(principle.when)
    sets = {**scope.sets, "patterns": frozenset(principle.patterns)}
    return Scope(sets, scope.dims, scope.literals, scope.opaque)


def _classify(name: str, old: Principle, new: Principle) -> ChangeClass:
    if name in _BY_FIELD:
        return _BY_FIELD[name]
    if name == "kind":
        return ChangeClass.REVERSED if Kind.DEAD_END in (old.kind, new.kind) else ChangeClass.CLAIM
    if name == "patterns":
        sides = (Scope({"patterns": frozenset(p.patterns)}) for p in (old, new))
        return OF_RELATION[compare(*sides)]
    if name == "effect":
        return ChangeClass.REVERSED if _turned(old.effect, new.effect) else ChangeClass.EFFECT
    if name in PRINCIPLE_PROSE:
        return _classify_prose(name, getattr(old, name) or "", getattr(new, name) or "")
    return ChangeClass.EDITORIAL


def _classify_prose(name: str, old: str, new: str) -> ChangeClass:
    before, after = folded(old), folded(new)
    if before == after:
        return ChangeClass.EDITORIAL
    if name == "claim" and _without_negations(before) == _without_negations(after):
        return ChangeClass.REVERSED
    return ChangeClass.CLAIM


def _without_negations(text: str) -> list[str]:
    return [word for word in text.split() if word not in _NEGATIONS]


def _turned(old: Effect | str, new: Effect | str) -> bool:
    """True when a gain became a loss or a loss a gain."""
    if not (isinstance(old, Effect) and isinstance(new, Effect)):
        return False
    return (old.low >= 1 and new.high < 1) or (old.high < 1 and new.low >= 1)


def _when_changes(old: When, new: When) -> Iterator[FieldChange]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for name in When.model_fields:
        if before[name] != after[name]:
            # Each field alone, so that a reviewer sees which of several narrowed and which widened.
            sides = (scope_of_when(When.model_validate({name: getattr(w, name)})) for w in (old, new))
            kind = OF_RELATION[compare(*sides)]
            yield FieldChange(f"when.{name}", before[name] or None, after[name] or None, kind)


def _evidence_changes(old: tuple[Evidence, ...], new: tuple[Evidence, ...]) -> Iterator[FieldChange]:
    left = [e for e in old if e not in new]
    came = [(i, e) for i, e in enumerate(new) if e not in old]
    if not left and not came:
        yield FieldChange("evidence.order", [e.what for e in old], [e.what for e in new], ChangeClass.EDITORIAL)
    added = []
    for index, item in came:
        before = _same_evidence(left, item)
        if before is None:
            added.append(FieldChange(f"evidence.{index}", None, _json(item), ChangeClass.EVIDENCE_ADDED))
            continue
        left.remove(before)
        for path, a, b in differing_fields(_json(before), _json(item)):
            yield FieldChange(f"evidence.{index}.{path}", a, b, ChangeClass.EVIDENCE_CHANGED)
    for item in left:
        yield FieldChange(f"evidence.{old.index(item)}", _json(item), None, ChangeClass.EVIDENCE_REMOVED)
    yield from added


def _same_evidence(candidates: list[Evidence], item: Evidence) -> Evidence | None:
    """The candidate that ``item`` is most likely an edit of; None where none is like it."""
    scored = [(_likeness(candidate, item), -i) for i, candidate in enumerate(candidates)]
    score, position = max(scored, default=(0.0, 0))
    return candidates[-position] if score >= _SAME_EVIDENCE else None


def _likeness(a: Evidence, b: Evidence) -> float:
    """Share of words two evidence texts have in common; the same source or record adds to it."""
    words = difflib.SequenceMatcher(None, folded(a.what).split(), folded(b.what).split(), autojunk=False).ratio()
    linked = any(
        x is not None and x == y for x, y in ((a.reference, b.reference), (a.record, b.record), (a.kernel, b.kernel))
    )
    return words + 0.3 if linked else words


def _json(evidence: Evidence) -> dict[str, Any]:
    return evidence.model_dump(mode="json", exclude_none=True)


def _side(name: str, *entries: Principle) -> tuple[Any, Any, str]:
    old, new = (e.model_dump(mode="json", include={name})[name] for e in entries)
    return old, new, name
