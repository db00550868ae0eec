"""A file's report as JSON data, for the cache."""

from __future__ import annotations

from typing import Any

from kb.diagnostic import Diagnostic, Severity
from kb.lint.engine import FileReport
from kb.lint.summary import Summary
from kb.lint.waiver import Waiver


def dump(report: FileReport) -> list[Any]:
    """JSON data from which ``load`` makes an equal report."""
    summary = report.summary
    return [
        [[f.line, f.column, f.code, f.message, f.severity.value, f.fix] for f in report.findings],
        [summary.kind, summary.id, summary.data, summary.places] if summary is not None else None,
        [[w.line, w.column, w.codes, w.first, w.last, w.until, w.problem] for w in report.waivers],
    ]


def load(path: str, data: Any) -> FileReport | None:
    """The report, or None where the data is not of this form."""
    try:
        findings, summary, waivers = data
        return FileReport(
            path,
            tuple(Diagnostic(path, a, b, code, text, Severity(s), fix) for a, b, code, text, s, fix in findings),
            Summary(path, *summary) if summary is not None else None,
            tuple(Waiver(a, b, tuple(codes), c, d, until, why) for a, b, codes, c, d, until, why in waivers),
        )
    except (ValueError, TypeError):
        return None
