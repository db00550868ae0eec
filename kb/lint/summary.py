"""What the cross-file rules need to know of an entry: small, plain data that a cache can hold.

A summary is made once for a file's content. With one file changed in a thousand, the other summaries come from
the cache and the rules that compare files still see all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

from kb.contract import Contract
from kb.library import Entry
from kb.lint.words import subject_words
from kb.principle import Principle

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """One readable entry. ``data`` is JSON data; its keys depend on ``kind`` and are those of ``summarize``."""

    path: str
    kind: str
    id: str
    data: Mapping[str, Any]
    places: Mapping[str, Place]

    def place(self, *path: str | int) -> Place:
        """Line and column of the value at ``path``, else of the nearest ancestor that was kept."""
        parts = [str(step) for step in path]
        while parts:
            found = self.places.get(".".join(parts))
            if found is not None:
                return (found[0], found[1])
            parts.pop()
        return (1, 1)

    def is_accepted(self) -> bool:
        return bool(self.data["status"] == "accepted")


def summarize(entry: Entry) -> Summary | None:
    """The summary of a readable entry."""
    model, document = entry.model, entry.document
    if model is None:
        return None
    paths: list[tuple[str | int, ...]] = [("id",), ("title",), ("status",)]
    data: dict[str, Any] = {"title": model.title, "status": model.status.value}
    if isinstance(model, Contract):
        data["dims"] = list(model.dims)
    else:
        data |= _principle_data(model, document.value or {})
        paths += [("created",), ("modified",), ("superseded_by",)]
        for name, count in (("patterns", len(model.patterns)), ("supersedes", len(model.supersedes))):
            paths += [(name, i) for i in range(count)]
        paths += [("when", "dims", i) for i in range(len(model.when.dims))]
        paths += [("related", i, "id") for i in range(len(model.related))]
        for i, evidence in enumerate(data["evidence"]):
            paths += [("evidence", i, name) for name in evidence]
    places = {".".join(map(str, p)): document.place(p) for p in paths}
    return Summary(entry.path, entry.kind.value, model.id, data, places)


def _principle_data(block: Principle, raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "block": block.kind.value,
        "patterns": list(block.patterns),
        "when": raw.get("when", {}),
        "dims": [[c.text, sorted(c.names)] for c in block.when.dims],
        "supersedes": list(block.supersedes),
        "superseded_by": block.superseded_by,
        "related": [[link.id, link.relation] for link in block.related],
        "created": block.created.isoformat(),
        "modified": block.modified.isoformat(),
        "evidence": [
            {
                name: str(value)
                for name in ("record", "kernel", "measured_on")
                if (value := getattr(evidence, name)) is not None
            }
            for evidence in block.evidence
        ],
        "words": sorted(subject_words(f"{block.title} {block.claim}")),
        "title_words": sorted(subject_words(block.title)),
    }


@dataclass(frozen=True)
class View:
    """All readable entries of a library, in path order, and what else a cross-file rule may ask.

    ``broken`` are ids of entries whose files cannot be read: nothing is said about links to them. ``exists`` tells
    whether a path below the library's root is there (None: that part of the library is not shipped here, nothing can
    be said).
    """

    summaries: tuple[Summary, ...]
    today: date
    broken: frozenset[str] = frozenset()
    exists: Callable[[str], bool | None] = field(default=lambda _: None)

    @cached_property
    def principles(self) -> dict[str, Summary]:
        """By id; of two with one id the one whose path is the id."""
        return _by_id(s for s in self.summaries if s.kind == "principle")

    @cached_property
    def contracts(self) -> dict[str, Summary]:
        """By id; of two with one id the one whose path is the id."""
        return _by_id(s for s in self.summaries if s.kind == "contract")


def _by_id(summaries: Iterable[Summary]) -> dict[str, Summary]:
    found: dict[str, Summary] = {}
    for summary in rightful_first(summaries):
        found.setdefault(summary.id, summary)
    return found


def rightful_first(summaries: Iterable[Summary]) -> list[Summary]:
    """Files whose path is their id before files that only claim it; else in the order given."""
    return sorted(summaries, key=lambda s: s.path.split("/", 1)[-1] != f"{s.id}.yaml")
