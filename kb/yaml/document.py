"""A parsed file: a tree of values and, beside it, a tree of where each value stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kb.yaml.source import Lines, Problem

Step = str | int
Path = Sequence[Step]


@dataclass(slots=True)
class Node:
    """Where one value stands: offsets of its first character and of the one after its last.

    ``style`` is how it is written: ``""`` plain, ``'`` ``"`` quoted, ``|`` ``>`` block text, ``{`` ``[`` flow,
    ``map`` ``seq`` block. ``key`` is the place of the mapping key it belongs to.
    """

    start: int
    end: int
    style: str
    key: tuple[int, int] | None = None
    fields: dict[str, Node] | None = None
    items: list[Node] | None = None

    def child(self, step: Step) -> Node | None:
        """The node below, or None."""
        if isinstance(step, str):
            return self.fields.get(step) if self.fields is not None else None
        if self.items is not None and 0 <= step < len(self.items):
            return self.items[step]
        return None


@dataclass(slots=True)
class Document:
    """One file. ``value`` and ``root`` are None where it could not be read; ``problems`` then says why."""

    text: str
    value: dict[str, Any] | None
    root: Node | None
    problems: list[Problem]
    _lines: Lines | None = field(default=None, repr=False)

    @property
    def lines(self) -> Lines:
        if self._lines is None:
            self._lines = Lines.of(self.text)
        return self._lines

    def nearest(self, path: Path) -> tuple[Node | None, tuple[Step, ...]]:
        """The node at ``path`` or the closest ancestor that exists, and its own path.

        Steps that lead nowhere are skipped when a later one goes on (pydantic's ``loc`` holds type names).
        """
        node, walked = self.root, []
        for step in path:
            below = node.child(step) if node is not None else None
            if below is not None:
                node = below
                walked.append(step)
        return node, tuple(walked)

    def place(self, path: Path = (), *, key: bool = False) -> tuple[int, int]:
        """Line and column of the value at ``path`` (of its key when ``key``), or of the nearest ancestor."""
        node, walked = self.nearest(path)
        if node is None:
            return (1, 1)
        if key and node.key is not None and tuple(path) == walked:
            return self.lines.place(node.key[0])
        return self.lines.place(node.start)

    def place_in_text(self, path: Path, needle: str, index: int = 0) -> tuple[int, int]:
        """Line and column of ``needle`` as it is written inside the scalar at ``path``; else the scalar's own.

        ``index`` is the position of the needle in the *value*; of several occurrences the one with as many
        occurrences before it is meant.
        """
        node, _ = self.nearest(path)
        if node is None:
            return (1, 1)
        value = self.at(path)
        before = value.count(needle, 0, index) if isinstance(value, str) and needle else 0
        at = node.start - 1
        for _ in range(before + 1):
            at = self.text.find(needle, at + 1, node.end) if needle else -1
            if at < 0:
                return self.lines.place(node.start)
        return self.lines.place(at)

    def at(self, path: Path) -> Any:
        """The value at ``path``, or None."""
        value: Any = self.value
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def walk(value: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Every value below ``value`` with its path, in file order, itself included."""
    yield path, value
    if isinstance(value, dict):
        for key, below in value.items():
            yield from walk(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from walk(below, (*path, index))
