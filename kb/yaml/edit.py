"""Edits of a person's file: text is spliced at the marks of one node, everything else keeps its bytes.

Round-trip dumpers rewrap, requote and move comments. Here every edit is a splice followed by a proof: the new
text is parsed again, and unless the target changed as asked and nothing else did, the edit is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from kb.yaml.document import Document, Node, Step
from kb.yaml.emit import emit_block, emit_flow, emit_item, emit_scalar
from kb.yaml.loader import load_text

Loc = Sequence[Step]


class EditError(Exception):
    """An edit that cannot be made without touching something else; the message says why."""


def set_field(text: str, path: Loc, value: Any, *, after: str | None = None) -> str:
    """``text`` with the value at ``path`` replaced, or its last key added to the mapping above.

    A new key goes behind the field ``after`` where that exists, else to the end of its mapping. Setting the value
    that is already there returns the very same text. Raises EditError.
    """
    document = _read(text)
    if not path:
        raise EditError("the whole entry cannot be set")
    parent, key = document.nearest(path[:-1]), path[-1]
    node = parent[0]
    if node is None or parent[1] != tuple(path[:-1]):
        raise EditError(f"{_show(path[:-1])} does not exist")
    target = node.child(key)
    if target is not None and _same(document.at(path), value):
        return text
    wanted = copy.deepcopy(document.value)
    above: Any = wanted
    for step in path[:-1]:
        above = above[step]
    if target is not None:
        above[key] = value
        return _prove(_replace(text, target, value, in_flow=node.style in ("{", "[")), wanted, path)
    if node.fields is None or not isinstance(key, str):
        raise EditError(f"{_show(path)}: a list is extended with append")
    spliced, position = _insert(document, node, key, value, after)
    fields = list(above.items())
    above.clear()
    above.update([*fields[:position], (key, value), *fields[position:]])
    return _prove(spliced, wanted, path)


def append(text: str, path: Loc, value: Any) -> str:
    """``text`` with ``value`` as the new last item of the list at ``path``; the list is made where it is missing.

    Raises EditError.
    """
    document = _read(text)
    node, walked = document.nearest(path)
    if walked != tuple(path) or node is None:
        return set_field(text, path, [value])
    if node.items is None:
        raise EditError(f"{_show(path)} is not a list")
    wanted = copy.deepcopy(document.value)
    target: Any = wanted
    for step in path:
        target = target[step]
    target.append(value)
    if node.style == "[":
        at = node.items[-1].end if node.items else node.start + 1
        addition = (", " if node.items else "") + emit_flow(value)
        return _prove(text[:at] + addition + text[at:], wanted, path)
    if not node.items:
        raise EditError(f"{_show(path)} has no items to follow")
    last = node.items[-1]
    dash = text.rfind("-", 0, last.start)
    column = dash - (text.rfind("\n", 0, dash) + 1)
    at = _line_end(text, last.end)
    return _prove(f"{text[:at]}\n{' ' * column}- {emit_item(value, column)}{text[at:]}", wanted, path)


def bump_version(text: str, day: date) -> str:
    """``text`` with ``version`` one higher and, where the entry has it, ``modified`` set to ``day``."""
    document = _read(text)
    version = document.at(("version",))
    if not isinstance(version, int) or isinstance(version, bool):
        raise EditError("'version' is not a whole number")
    text = set_field(text, ("version",), version + 1)
    return set_modified(text, day)


def set_modified(text: str, day: date) -> str:
    """``text`` with ``modified`` set to ``day`` where the entry has that field."""
    return set_field(text, ("modified",), day.isoformat()) if _read(text).at(("modified",)) is not None else text


def set_status(
    text: str, status: str, day: date, *, reason: str | None = None, superseded_by: str | None = None
) -> str:
    """``text`` with a new status, its reason and successor, and ``modified`` set to ``day``."""
    text = set_field(text, ("status",), status)
    if superseded_by is not None:
        text = set_field(text, ("superseded_by",), superseded_by, after="status")
    if reason is not None:
        text = set_field(text, ("status_reason",), reason, after="status")
    return set_modified(text, day)


def save(path: Path, text: str) -> bool:
    """Write ``text`` in one step, or not at all; False where the file holds it already. Raises OSError."""
    from kb.store.durable import replace_file

    data = text.encode("utf-8")
    target = path.resolve()
    if target.exists() and target.read_bytes() == data:
        return False
    replace_file(target, data)
    return True


def _read(text: str) -> Document:
    document = load_text(text)
    if document.value is None:
        problem = document.problems[0]
        line, column = document.lines.place(problem.offset or 0)
        raise EditError(f"{line}:{column}: {problem.code}: {problem.message}")
    return document


def _replace(text: str, node: Node, value: Any, *, in_flow: bool) -> str:
    """``text`` with what stands at ``node`` replaced, in the style it had where that can hold the value."""
    end = node.end
    if isinstance(value, Mapping | list | tuple):
        if node.style in ("map", "seq") and not in_flow:
            start = node.key[1] if node.key else node.start
            column = _column(text, node.key[0] if node.key else node.start)
            return text[: start + 1] + emit_block(value, column) + text[end:]
        return text[: node.start] + emit_flow(value) + text[end:]
    if node.style in ("|", ">") and isinstance(value, str) and node.key is not None:
        start = node.key[1]
        column = _column(text, node.key[0])
        # Keep `key:`; a header comment behind the indicator is part of the old text and stays out of reach.
        colon = text.index(":", start)
        return text[: colon + 1] + emit_block(value, column) + text[end:]
    if node.style in ("map", "seq", "|", ">"):
        start = text.index(":", node.key[1]) + 1 if node.key else node.start
        return text[:start] + (" " if node.key else "") + emit_scalar(value) + text[end:]
    quote = node.style if isinstance(value, str) and node.style in ("'", '"') else ""
    return text[: node.start] + emit_scalar(value, flow=in_flow, quote=quote) + text[end:]


def _insert(document: Document, node: Node, key: str, value: Any, after: str | None) -> tuple[str, int]:
    """The text with a new field in a mapping, and its position among the fields."""
    text = document.text
    assert node.fields is not None
    names = list(node.fields)
    position = names.index(after) + 1 if after in node.fields else len(names)
    if node.style == "{":
        at = node.fields[names[position - 1]].end if position else node.start + 1
        return f"{text[:at]}{', ' if position else ''}{emit_flow(key)}: {emit_flow(value)}{text[at:]}", position
    before = node.fields[names[position - 1]]
    column = _column(text, before.key[0] if before.key else node.start)
    at = _line_end(text, before.end)
    return f"{text[:at]}\n{' ' * column}{emit_flow(key)}:{emit_block(value, column)}{text[at:]}", position


def _line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end


def _column(text: str, offset: int) -> int:
    return offset - (text.rfind("\n", 0, offset) + 1)


def _prove(text: str, wanted: Any, path: Loc) -> str:
    """``text``, after checking that it says what was asked for and nothing else."""
    result = load_text(text)
    if result.value is None or not _same(result.value, wanted):
        raise EditError(f"{_show(path)} cannot be changed without touching something else; edit the file by hand")
    return text


def _same(a: Any, b: Any) -> bool:
    """Equal values of equal types, keys in equal order: 1, 1.0 and True are three values here."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def _show(path: Loc) -> str:
    return ".".join(str(step) for step in path) or "the entry"
