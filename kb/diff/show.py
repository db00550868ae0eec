"""A semantic diff as text for a terminal and as Markdown for a pull request."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kb.diff.excerpt import excerpts
from kb.diff.model import Bump, ChangeClass, EntryChange, LibraryDiff, What
from kb.diff.scope import Relation
from kb.library import EntryKind
from kb.markdown import code_span, escape

_SIGN = {What.ADDED: "+", What.REMOVED: "-", What.RENAMED: ">", What.CHANGED: "~", What.UNREADABLE: "!"}
_NOUN = {EntryKind.PRINCIPLE: "principle", EntryKind.CONTRACT: "contract"}
_BUMPS = {
    Bump.MISSING: "the meaning changed and the version did not",
    Bump.NEEDLESS: "the version changed and the meaning did not",
    Bump.LOWERED: "the version went down",
}
_VALUE_WIDTH = 400


def as_text(diff: LibraryDiff) -> str:
    """Several lines: a summary, then every entry with its fields."""
    if not diff.entries:
        return f"{diff.base}..{diff.head}: no entry differs\n"
    lines = [f"{diff.base}..{diff.head}: {summary(diff)}"]
    for entry in diff.entries:
        text = list(_entry_text(entry))
        # Entries of one line stand together, the others apart.
        lines += ["", *text] if len(text) > 1 or entry is diff.entries[0] or lines[-1].startswith(" ") else text
    return "\n".join(lines) + "\n"


def as_markdown(diff: LibraryDiff) -> str:
    """A table of entries, then one folded section an entry that has fields to show."""
    if not diff.entries:
        return "No entry differs.\n"
    lines = [f"{summary(diff)[:1].upper()}{summary(diff)[1:]}.", ""]
    lines += ["| | entry | version | change |", "|---|---|---|---|"]
    for entry in diff.entries:
        cells = (entry.what.value, code_span(entry.id), _versions(entry), _row_text(entry))
        lines.append("| " + " | ".join(cells) + " |")
    for entry in diff.entries:
        if entry.fields:
            lines += ["", *_entry_markdown(entry)]
    return "\n".join(lines) + "\n"


def summary(diff: LibraryDiff) -> str:
    """One line: how many entries of each sort met which fate."""
    counts = Counter((e.kind, e.what) for e in diff.entries)
    parts = [f"{n} {_NOUN[kind]}{'' if n == 1 else 's'} {what.value}" for (kind, what), n in counts.items()]
    return ", ".join(parts)


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    text = " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 1] + "…"


def sides_text(before: Any, after: Any) -> tuple[str, str]:
    """A field before and after, on one line each; "" where absent, long prose cut to what changed."""
    if isinstance(before, str) and isinstance(after, str):
        return excerpts(before, after)
    return _value_text(before), _value_text(after)


def _entry_text(entry: EntryChange) -> Iterator[str]:
    version = f"  {_versions(entry)}" if _versions(entry) else ""
    yield f"{_SIGN[entry.what]} {_NOUN[entry.kind]} {entry.id}{version}  {entry.title}".rstrip()
    for remark in _remarks(entry):
        yield f"    {remark}"
    for change in entry.fields:
        yield f"    {change.path}: {change.kind.value}"
        before, after = sides_text(change.before, change.after)
        if before:
            yield f"      - {before}"
        if after:
            yield f"      + {after}"


def _entry_markdown(entry: EntryChange) -> Iterator[str]:
    yield f"<details><summary>{html.escape(f'{entry.id}: {entry.title}')}</summary>"
    yield ""
    yield "| field | kind of change | before | after |"
    yield "|---|---|---|---|"
    for change in entry.fields:
        sides = (code_span(side) if side else "" for side in sides_text(change.before, change.after))
        yield "| " + " | ".join((code_span(change.path), change.kind.value, *sides)) + " |"
    yield ""
    yield "</details>"


def _row_text(entry: EntryChange) -> str:
    return "<br>".join(escape(remark) for remark in _remarks(entry)) or escape(entry.title)


def _remarks(entry: EntryChange) -> list[str]:
    """What a reviewer must not overlook, in short sentences."""
    found = []
    if entry.previous_id:
        found.append(f"was {entry.previous_id}; ids never change, so links to the old one are dead")
    if entry.classes:
        found.append(", ".join(kind.value for kind in entry.classes))
    relations = {ChangeClass.NARROWED, ChangeClass.WIDENED, ChangeClass.SHIFTED, ChangeClass.UNDECIDED}
    if len(relations & set(entry.classes)) > 1 and entry.applicability is not Relation.EQUAL:
        found.append(f"all conditions together: {entry.applicability.value}")
    if entry.bump in _BUMPS:
        found.append(_BUMPS[entry.bump])
    if entry.superseded_by:
        found.append(f"superseded by {entry.superseded_by}")
    if entry.note:
        found.append(entry.note)
    return found


def _versions(entry: EntryChange) -> str:
    before, after = entry.version_before, entry.version_after
    if before is None or after is None or before == after:
        known = after if after is not None else before
        return "" if known is None else f"v{known}"
    return f"v{before} → v{after}"
