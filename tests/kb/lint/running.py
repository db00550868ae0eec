"""Runs an example of a rule: its library in memory, and its change against its base."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from datetime import date
from pathlib import Path

from kb.diagnostic import Diagnostic
from kb.library import load_library_from
from kb.lint.engine import lint_change, lint_files
from kb.lint.example import Example

TODAY = date(2026, 11, 30)


def findings(example: Example) -> list[Diagnostic]:
    """Everything that is found in the example."""
    found = lint_files(example.library(), today=TODAY, exists=_exists_in(example.beside))
    if example.base is not None:
        base = load_library_from(example.base_library(), Path())
        head = load_library_from(example.library(), Path())
        found += lint_change(base, head, today=TODAY)
    return found


def _exists_in(beside: frozenset[str]) -> Callable[[str], bool | None]:
    return lambda path: any(fnmatch.fnmatchcase(name, path) for name in beside) if beside else None
