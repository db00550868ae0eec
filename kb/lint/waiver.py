"""``# noqa`` comments: which findings they excuse, where, why, and until when."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date

from kb.yaml import Document, Node

_NOQA = re.compile(r"#\s*noqa\b(?P<rest>[^\n]*)", re.IGNORECASE)
_FORM = re.compile(
    r":\s*(?P<codes>AC[0-9]{3}(?:\s*,\s*AC[0-9]{3})*)[\s:,]+(?P<reason>.*?)(?:,?\s*until=(?P<until>\S+))?\s*", re.DOTALL
)
_ADVICE = "# noqa: AC123 reason, until=YYYY-MM-DD"


@dataclass(frozen=True, slots=True)
class Waiver:
    """Excuses findings of ``codes`` on lines ``first`` to ``last``. ``problem`` says why it excuses nothing."""

    line: int
    column: int
    codes: tuple[str, ...]
    first: int
    last: int
    until: str | None = None
    problem: str = ""

    def is_over(self, today: date) -> bool:
        return self.until is not None and date.fromisoformat(self.until) < today


def find_waivers(document: Document, known: Collection[str], waivable: Collection[str]) -> tuple[Waiver, ...]:
    """All waivers of a file, malformed ones with their problem."""
    if "noqa" not in document.text.lower() or document.root is None:
        return ()
    return tuple(_waivers(document, document.root, known, waivable))


def _waivers(document: Document, root: Node, known: Collection[str], waivable: Collection[str]) -> Iterator[Waiver]:
    text, lines = document.text, document.lines
    spans = sorted(_texts(root, text))
    starts = [start for start, _ in spans]
    for match in _NOQA.finditer(text):
        at = match.start()
        before = text[text.rfind("\n", 0, at) + 1 : at]
        if before and not before.endswith(" "):
            continue
        inside = bisect_right(starts, at) - 1
        if inside >= 0 and at < spans[inside][1]:
            continue  # part of a text, not a comment
        line, column = lines.place(at)
        codes, until, problem = _parse(match["rest"], known, waivable)
        if not before.strip() and at < root.start:
            first, last = 0, len(lines.starts)
        else:
            first = line if before.strip() else _next_content_line(text, line, lines.starts)
            last = _last_line(document, root, first)
        yield Waiver(line, column, codes, first, last, until, problem)


def _parse(rest: str, known: Collection[str], waivable: Collection[str]) -> tuple[tuple[str, ...], str | None, str]:
    match = _FORM.fullmatch(rest)
    if match is None:
        what = "no reason" if re.match(r":\s*AC[0-9]{3}", rest) else "no code and reason"
        return (), None, f"{what} ({_ADVICE})"
    codes = tuple(code.strip() for code in match["codes"].split(","))
    until = match["until"]
    if not re.search(r"[A-Za-z]{2}", match["reason"]):
        return codes, None, f"no reason ({_ADVICE})"
    for code in codes:
        if code not in known:
            return codes, None, f"there is no rule {code}"
        if code not in waivable:
            return codes, None, f"{code} cannot be waived"
    if until is not None:
        try:
            date.fromisoformat(until if re.fullmatch(r"\d{4}-\d{2}-\d{2}", until) else "")
        except ValueError:
            return codes, None, f"'{until}' is no day (YYYY-MM-DD)"
    return codes, until, ""


def _texts(node: Node, text: str) -> Iterator[tuple[int, int]]:
    """Spans of scalars. A block text's own header line may end in a comment and is left out."""
    if node.style in ("|", ">"):
        yield (text.find("\n", node.start) + 1 or node.end), node.end
    elif node.fields is None and node.items is None:
        yield node.start, node.end
    for below in (node.fields or {}).values():
        yield from _texts(below, text)
    for below in node.items or ():
        yield from _texts(below, text)


def _next_content_line(text: str, line: int, starts: tuple[int, ...]) -> int:
    for following in range(line, len(starts)):
        end = text.find("\n", starts[following])
        content = text[starts[following] : len(text) if end < 0 else end].strip()
        if content and not content.startswith("#"):
            return following + 1
    return line


def _last_line(document: Document, root: Node, first: int) -> int:
    """The last line of what starts on line ``first``."""
    last, stack = first, [root]
    while stack:
        node = stack.pop()
        begins = document.lines.place(node.key[0] if node.key is not None else node.start)[0]
        if begins == first and node is not root:
            last = max(last, document.lines.place(max(node.end - 1, node.start))[0])
        stack += [*(node.fields or {}).values(), *(node.items or ())]
    return last
