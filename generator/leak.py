"""Proof that no run of a reference's tokens survives in a text.

Tokens are identifiers, numbers and marks; case, layout and comments' decoration do not matter. A text leaks when it
shares a run of ``RUN`` tokens with the reference that is not made of plain words alone: two authors may both write
"one warp reads one row", but not the same eight tokens of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

RUN = 8
WORD_RUN = 14
_TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+(?:\.[0-9]+)?|[^\sA-Za-z_0-9]")


@dataclass(frozen=True, slots=True)
class Leak:
    """A shared run: where it starts in the text (character offset) and the text itself."""

    offset: int
    shared: str


def tokens(text: str) -> list[str]:
    """The tokens of ``text``, in lower case."""
    return [m[0].lower() for m in _TOKEN.finditer(text)]


def find_leaks(reference: str, text: str, *, run: int = RUN, word_run: int = WORD_RUN) -> list[Leak]:
    """Every maximal run that ``text`` shares with ``reference``.

    A run counts from ``run`` tokens on when it holds a mark, a number or a name with an underscore or digit, and from
    ``word_run`` tokens on when it is plain words (which a comment and a principle may share by chance).
    """
    known = windows(tokens(reference), run)
    matches = list(_TOKEN.finditer(text))
    words = [m[0].lower() for m in matches]
    leaks: list[Leak] = []
    start = 0
    while start + run <= len(words):
        end = start
        while end + run <= len(words) and tuple(words[end : end + run]) in known:
            end += 1
        if end == start:
            start += 1
            continue
        shared = words[start : end + run - 1]
        if len(shared) >= word_run or any(not w.isalpha() and w not in _PROSE_MARKS for w in shared):
            last = matches[end + run - 2]
            leaks.append(Leak(matches[start].start(), text[matches[start].start() : last.end()]))
        start = end + 1
    return leaks


def longest_run(references: Iterable[str], text: str) -> int:
    """Length in tokens of the longest run that ``text`` shares with any reference; for reports."""
    words = tokens(text)
    longest = 0
    for reference in references:
        other = tokens(reference)
        while longest < len(words) and windows(other, longest + 1) & windows(words, longest + 1):
            longest += 1
    return longest


_PROSE_MARKS = frozenset(".,:;()-'\"")


def windows(words: list[str], size: int) -> set[tuple[str, ...]]:
    """Every run of ``size`` tokens: texts that have none in common share nothing that ``find_leaks`` would find."""
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
