"""Which fields differ between two JSON trees, and their dotted paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# How an item of a list is recognised when its neighbours move; an item without any of these is not.
_IDENTITY = ("name", "id", "point")


def differing_fields(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted path, before, after) of every leaf that differs, in the order of ``after``; None means absent.

    Items of a list are matched by ``name``, ``id`` or ``point`` where all of them have one; their order is then a
    field of its own, ``<path>.order``. Other lists are leaves.
    """
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*after, *(k for k in before if k not in after)]:
            yield from differing_fields(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
        return
    key = _identity(before, after)
    if key is None:
        yield path, before, after
        return
    old, new = ({item[key]: item for item in items} for items in (before, after))
    yield from differing_fields(old, new, path)
    kept = [[name for name in names if name in other] for names, other in ((old, new), (new, old))]
    if kept[0] != kept[1]:
        yield f"{path}.order", list(old), list(new)


def _identity(before: Any, after: Any) -> str | None:
    if not (isinstance(before, list) and isinstance(after, list)):
        return None
    items = [*before, *after]
    if not all(isinstance(item, dict) for item in items):
        return None
    for key in _IDENTITY:
        sides = [[item.get(key) for item in side] for side in (before, after)]
        if all(isinstance(v, str) for side in sides for v in side) and all(len(set(s)) == len(s) for s in sides):
            return key
    return None
