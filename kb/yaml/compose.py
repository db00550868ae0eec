"""Events to a value tree and a position tree, refusing every YAML feature that has no place in an entry."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from kb.yaml.document import Node
from kb.yaml.events import HAS_C, SyntaxProblem, events
from kb.yaml.scalars import Ambiguous, resolve_plain
from kb.yaml.source import Problem, forbidden_characters

MAX_DEPTH = 24
MAX_NODES = 20_000

_MISSING = object()
# `text #1` silently loses its end; a comment that is meant has a space after its '#'.
_LOST = re.compile(r" +#[^\s#!]")

_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*(?: +#[^\n]*)? *(?:\n|$)")


class _Frame:
    """A mapping or list that is still open."""

    __slots__ = ("key", "key_span", "node", "value")

    def __init__(self, node: Node, value: Any) -> None:
        self.node = node
        self.value = value
        self.key: Any = _MISSING
        self.key_span: tuple[int, int] | None = None


class _Stop(Exception):  # noqa: N818 - not an error: the problem is already recorded
    """Nothing more can be learnt from this file."""


def compose(text: str) -> Composer:
    """Both trees of ``text`` and everything that is wrong with it."""
    composer = Composer(text)
    if not composer.run(pure=not HAS_C) and HAS_C:
        composer = Composer(text)
        composer.run(pure=True)
    return composer


class Composer:
    """Builds both trees in one pass without recursion, so depth is limited by us and not by the stack."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self.value: Any = None
        self._stack: list[_Frame] = []
        self._nodes = 0
        self._documents = 0
        self._comments_matter = _LOST.search(text) is not None

    def run(self, *, pure: bool) -> bool:
        """Read all events; what is wrong ends up in ``problems``. False where the parser gave up."""
        try:
            for event in events(self.text, pure=pure):
                self._take(event)
        except SyntaxProblem as error:
            self._report("AC011", error.offset, str(error))
            return False
        except _Stop:
            pass
        return True

    def _report(self, code: str, offset: int, message: str, fix: str = "") -> None:
        self.problems.append(Problem(code, offset, message, fix))

    def _take(self, event: Any) -> None:
        kind = type(event)
        if kind is ScalarEvent:
            self._scalar(event)
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            self._open(event, kind is MappingStartEvent)
        elif kind is MappingEndEvent or kind is SequenceEndEvent:
            self._close(event)
        elif kind is AliasEvent:
            self._report("AC016", event.start_mark.index, f"alias *{event.anchor}", "write the value out")
            self._place(Node(event.start_mark.index, event.end_mark.index, "*"), None)
        elif kind is DocumentStartEvent:
            self._document(event)

    def _document(self, event: Any) -> None:
        self._documents += 1
        if event.version or event.tags:
            offset = max(self.text.rfind("\n%", 0, event.end_mark.index) + 1, 0)
            self._report("AC013", offset, "a YAML directive", "remove the line; files are YAML 1.2 without directives")
        if self._documents > 1:
            self._report("AC014", event.start_mark.index, "a second document", "one entry a file; remove the '---'")
            raise _Stop

    def _properties(self, event: Any) -> None:
        offset = event.start_mark.index
        if event.anchor:
            self._report("AC016", offset, f"anchor &{event.anchor}", "remove it; aliases are not used")
        if event.tag and not (event.tag == "!" and not self.text.startswith("!", offset)):
            self._report("AC015", offset, f"explicit tag {event.tag}", "remove it; the schema knows the types")

    def _open(self, event: Any, mapping: bool) -> None:
        start = event.start_mark.index
        if event.anchor or event.tag:
            self._properties(event)
        if len(self._stack) >= MAX_DEPTH:
            self._report("AC024", start, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
            raise _Stop
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.node.fields is not None and frame.key is _MISSING:
            self._report(
                "AC019", start, "a mapping or list as a key ('{{ x }}' reads as one)", "quote the text, or use a string"
            )
            raise _Stop
        flow = bool(event.flow_style) if event.flow_style is not None else self.text[start : start + 1] in ("{", "[")
        if mapping:
            node = Node(start, start, "{" if flow else "map", fields={})
            self._place(node, {}, open_=True)
        else:
            node = Node(start, start, "[" if flow else "seq", items=[])
            self._place(node, [], open_=True)

    def _close(self, event: Any) -> None:
        frame = self._stack.pop()
        if frame.node.style in ("{", "["):
            frame.node.end = event.end_mark.index
        else:  # a block ends with its last child; the event's own mark is where the next token starts
            children = list(frame.node.fields.values()) if frame.node.fields is not None else frame.node.items or []
            frame.node.end = children[-1].end if children else frame.node.start

    def _scalar(self, event: Any) -> None:
        start, end = event.start_mark.index, event.end_mark.index
        frame = self._stack[-1] if self._stack else None
        if event.anchor or event.tag:
            self._properties(event)
        style = event.style or ""
        if style == '"' and "\\" in self.text[start:end]:
            self._escapes(event.value, start)
        if frame is not None and frame.node.fields is not None and frame.key is _MISSING:
            self._key(frame, event.value, style, start, end)
            return
        value: Any = event.value
        if style == "":
            if value == "" or start == end:
                # Parsers differ in where nothing stands; the place reported is ours.
                start = end = self._empty(frame, start)
                value = None
            else:
                try:
                    value = resolve_plain(value)
                except Ambiguous as error:
                    self._report(error.code, start, str(error), error.fix)
                if self._comments_matter and (lost := _LOST.match(self.text, end)):
                    hash_ = lost.group().strip()
                    self._report(
                        "AC026", lost.end() - 2, f"'{hash_}...' starts a comment here", "quote the text, or write '# '"
                    )
        elif style in "|>":
            if not _BLOCK_HEADER.match(self.text, start):
                self._report("AC011", start, "'|' or '>' starts a block text and is followed by something else")
            end = start + len(self.text[start:end].rstrip(" \n"))
        self._place(Node(start, end, style), value)

    def _escapes(self, value: str, start: int) -> None:
        """What must not stand in a file must not come in by an escape either; a visible ``\\t`` may."""
        for problem in forbidden_characters(value):
            if problem.code != "AC005":
                self._report(problem.code, start, f"an escape for: {problem.message}", problem.fix)

    def _empty(self, frame: _Frame | None, start: int) -> int:
        """Report a missing value; returns where it is missing."""
        if frame is None:
            self._report("AC010", 0, "the file has no content", "write an entry or remove the file")
            return 0
        if frame.key is not _MISSING and frame.key_span is not None:
            comma = frame.node.style == "{" and self.text[: frame.key_span[0]].rstrip().endswith(",")
            fix = "quote a text that holds a comma, or write a value" if comma else "write a value or remove the key"
            self._report("AC021", frame.key_span[0], f"'{frame.key}' has no value", fix)
            return frame.key_span[1]
        dash = max(self.text.rfind("-", 0, start + 1), 0)
        self._report("AC021", dash, "a list item without a value", "write a value or remove the '-'")
        return dash

    def _key(self, frame: _Frame, key: str, style: str, start: int, end: int) -> None:
        if style == "":
            if key == "<<":
                self._report("AC017", start, "a merge key '<<'", "write the fields out")
            elif key == "":
                self._report("AC019", start, "an empty key", "give it a name")
            else:
                try:
                    if not isinstance(resolve_plain(key), str):
                        self._report("AC019", start, f"the key {key} is not text", f'quote it: "{key}"')
                except Ambiguous:
                    self._report("AC019", start, f"the key '{key[:40]}' is not text to every reader", "quote it")
        if frame.node.fields is not None and key in frame.node.fields:
            first = frame.node.fields[key].key
            line = self.text.count("\n", 0, first[0]) + 1 if first else 0
            self._report("AC018", start, f"the key '{key[:60]}' is already set at line {line}", "keep one of them")
        frame.key = key
        frame.key_span = (start, end)

    def _place(self, node: Node, value: Any, *, open_: bool = False) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._report("AC025", node.start, f"more than {MAX_NODES} values", "split it; an entry is a page of prose")
            raise _Stop
        if not self._stack:
            self.root, self.value = node, value
        else:
            frame = self._stack[-1]
            if frame.node.items is not None:
                frame.node.items.append(node)
                frame.value.append(value)
            elif frame.key is _MISSING:  # an alias as a key
                self._report("AC019", node.start, "an alias as a key", "write the key out")
                raise _Stop
            elif frame.node.fields is not None:
                node.key = frame.key_span
                frame.node.fields.setdefault(frame.key, node)
                frame.value.setdefault(frame.key, value)
                frame.key = _MISSING
        if open_:
            self._stack.append(_Frame(node, value))
