"""Text that an author wrote, made safe to stand in Markdown: nothing in it becomes markup, a link or HTML."""

from __future__ import annotations

import re

# What starts markup inside a line of CommonMark or a table cell; what only counts at the start of a block is not here.
_SPECIAL = re.compile(r"([\\`*_\[\]#|<>~&$])")


def escape(text: str) -> str:
    """``text`` on one line, every character standing for itself; for use inside a line, not at its start."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code_span(text: str) -> str:
    """``text`` on one line as a code span, fenced by more backticks than it holds in a row."""
    line = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{pad}{line}{pad}{fence}"
