"""Values to YAML text that our own strict loader, and every other reader, reads back as the same values."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kb.yaml.scalars import Ambiguous, resolve_plain
from kb.yaml.source import forbidden_characters

WIDTH = 120

_PLAIN_START = re.compile(r"[^\s\-?:,\[\]{}#&*!|>'\"%@`=]|-[^\s,\[\]{}]")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def emit_flow(value: Any) -> str:
    """``value`` on one line, as it may stand inside ``[ ]`` and ``{ }``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{emit_flow(str(k))}: {emit_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(emit_flow(v) for v in value) + "]"
    return emit_scalar(value, flow=True)


def emit_scalar(value: Any, *, flow: bool = False, quote: str = "") -> str:
    """A scalar on one line; ``quote`` asks for a style, which is used where the text allows it.

    Raises ValueError for a value YAML has no place for (infinite, or of another type).
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _emit_float(value)
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} has no place in an entry")
    if quote == "'" and "\n" not in value and not forbidden_characters(value):
        return "'" + value.replace("'", "''") + "'"
    if quote == '"' or not is_plain(value, flow=flow):
        return _double_quoted(value)
    return value


def is_plain(text: str, *, flow: bool) -> bool:
    """True when ``text`` needs no quotes and every reader takes it for this very text."""
    if not text or text != text.strip() or "\n" in text or not _PLAIN_START.match(text) or _DATE.fullmatch(text):
        return False
    if ": " in text or " #" in text or text.endswith(":") or text.startswith(("---", "...")):
        return False
    if (flow and re.search(r"[,:\[\]{}]", text)) or forbidden_characters(text):
        return False
    try:
        return resolve_plain(text) == text
    except Ambiguous:
        return False


def emit_block(value: Any, indent: int) -> str:
    """What follows ``key:`` in a block mapping whose key stands at column ``indent`` (from 0).

    Starts with a space or a line end; ends without one. Prose too long for its line is folded.
    """
    pad = " " * (indent + 2)
    if isinstance(value, Mapping) and value:
        return "".join(f"\n{pad}{emit_flow(str(k))}:{emit_block(v, indent + 2)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(not isinstance(v, Mapping) and not (isinstance(v, Sequence) and not isinstance(v, str)) for v in value):
            line = emit_flow(value)
            if indent + len(line) + 20 <= WIDTH:
                return " " + line
        return "".join(f"\n{pad}- {emit_item(v, indent + 2)}" for v in value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return " " + emit_flow(value)
    if isinstance(value, str):
        if "\n" in value and (block := _literal(value, pad)) is not None:
            return block
        if "\n" not in value and indent + len(value) + 20 > WIDTH and (block := _folded(value, pad)) is not None:
            return block
    return " " + emit_scalar(value)


def emit_item(value: Any, indent: int) -> str:
    """What follows ``- `` in a block list whose dash stands at column ``indent``."""
    if isinstance(value, Mapping) and value:
        line = emit_flow(value)
        if len(line) + indent + 2 <= WIDTH and all(not isinstance(v, Mapping | list | tuple) for v in value.values()):
            return line
        pad = " " * (indent + 2)
        fields = [f"{emit_flow(str(k))}:{emit_block(v, indent + 2)}" for k, v in value.items()]
        return f"\n{pad}".join(fields)
    if isinstance(value, str):
        return emit_block(value, indent).removeprefix(" ")
    return emit_flow(value)


def emit_document(fields: Mapping[str, Any], *, header: Sequence[str] = ()) -> str:
    """A whole file: comment lines, then the fields in their own order."""
    lines = [f"# {line}" for line in header]
    lines += [f"{emit_flow(str(k))}:{emit_block(v, 0)}" for k, v in fields.items()]
    return "\n".join(lines) + "\n"


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def _double_quoted(text: str) -> str:
    """The strict loader refuses an escape of what it refuses as a character, so only visible text gets through."""
    return '"' + "".join(_ESCAPES.get(c) or _escape(c) for c in text) + '"'


def _escape(char: str) -> str:
    if not forbidden_characters(char):
        return char
    return f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"


def _emit_float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    text = repr(value)
    if "e" in text:
        mantissa, exponent = text.split("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        text = f"{mantissa}e{exponent}" if exponent[0] in "+-" else f"{mantissa}e+{exponent}"
    return text


def _folded(text: str, pad: str) -> str | None:
    """``>-`` with the words rewrapped; None where folding would not give the same text back."""
    if text != " ".join(text.split()) or forbidden_characters(text) or text.startswith("#"):
        return None
    lines = textwrap.wrap(text, WIDTH - len(pad), break_long_words=False, break_on_hyphens=False)
    if " ".join(lines) != text:
        return None
    return " >-" + "".join(f"\n{pad}{line}" for line in lines)


def _literal(text: str, pad: str) -> str | None:
    """``|`` or ``|-``; None where a block text would not give the same text back."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    if not lines[0].strip() or lines[0].startswith(" ") or body.endswith("\n") or forbidden_characters(text):
        return None
    if any(line != line.rstrip() for line in lines):
        return None
    mark = "|" if text.endswith("\n") else "|-"
    return f" {mark}" + "".join(f"\n{pad}{line}" if line else "\n" for line in lines)
