"""The linter's view of a change: what it finds now that it did not find before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from kb.diagnostic import Diagnostic
from kb.library import Library
from kb.lint.engine import FileReport, check_entry, check_library, lint_change, settle, view_of
from kb.lint.registry import by_code
from kb.review.report import new_findings


def findings_of_change(
    old: Library, new: Library, *, today: date, exists: Callable[[str], bool | None]
) -> tuple[tuple[Diagnostic, ...], int]:
    """Findings the change brings, those of the rules that compare revisions included, and how many were there before.

    ``exists`` tells whether a record or kernel below the library's root is there; it is asked for both states.
    """
    # Entries that both states share are the same objects, so each is checked once.
    reports: dict[int, FileReport] = {}

    def findings(library: Library) -> list[Diagnostic]:
        mine = []
        for entry in library.entries:
            if id(entry) not in reports:
                reports[id(entry)] = check_entry(entry)
            mine.append(reports[id(entry)])
        return settle(mine, check_library(mine, view_of(mine, today, exists)), by_code(), today)

    fresh, known = new_findings(findings(old), findings(new))
    return tuple(sorted({*fresh, *lint_change(old, new, today=today)})), known
