"""Long prose before and after an edit, cut down to the words around what changed."""

from __future__ import annotations

import difflib

_SHORT = 100
_CONTEXT_WORDS = 5
# Below this share of words in common, the whole of both texts says more than excerpts.
_ALIKE = 0.4


def excerpts(before: str, after: str) -> tuple[str, str]:
    """Both texts on one line, with long unchanged stretches replaced by an ellipsis."""
    old, new = before.split(), after.split()
    if max(len(before), len(after)) <= _SHORT:
        return " ".join(old), " ".join(new)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return " ".join(old), " ".join(new)
    left: list[str] = []
    right: list[str] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT_WORDS):
        for words, side, start, end in (
            (old, left, group[0][1], group[-1][2]),
            (new, right, group[0][3], group[-1][4]),
        ):
            if start > 0 and (not side or side[-1] != "…"):
                side.append("…")
            side += words[start:end]
            if end < len(words):
                side.append("…")
    return " ".join(left), " ".join(right)
