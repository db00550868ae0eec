"""Findings as text for a person, as JSON, as annotations of a GitHub run, and as SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from kb.diagnostic import Diagnostic, Severity
from kb.lint.run import Outcome

WIDTH = 110
_COLORS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_SARIF_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def as_text(outcome: Outcome, *, color: bool = False) -> Iterator[str]:
    """One finding after another, each with the line it is about, and a summary at the end."""
    lines: dict[str, list[str]] = {}
    for finding in outcome.findings:
        paint = _painter(finding.severity, color)
        place = f"{finding.path}:{finding.line}:{finding.column}" if finding.line else finding.path
        yield f"{place}: {paint(f'{finding.severity} {finding.code}')}: {finding.message}"
        if finding.line:
            if finding.path not in lines:
                text = outcome.texts.get(finding.path, b"").decode("utf-8", "replace")
                lines[finding.path] = text.split("\n")
            yield from _snippet(lines[finding.path], finding, paint)
        if finding.fix:
            yield f"{_gutter(finding)} = fix: {finding.fix}"
        yield ""
    yield summary(outcome)


def summary(outcome: Outcome) -> str:
    """One line that says how much was checked and what was found."""
    checked = f"{_plural(outcome.principles, 'principle')} and {_plural(outcome.contracts, 'contract')} checked"
    counts = [
        _plural(n, severity.value)
        for severity in (Severity.ERROR, Severity.WARNING)
        if (n := outcome.count(severity)) > 0
    ]
    return f"{checked}: {', '.join(counts) if counts else 'no findings'}"


def as_json(outcome: Outcome) -> str:
    """A stable JSON document; ``line`` and ``column`` count from 1, 0 means the whole file."""
    from kb.lint.registry import rule

    data = {
        "format": 1,
        "checked": {"principles": outcome.principles, "contracts": outcome.contracts},
        "summary": {s.value: outcome.count(s) for s in Severity},
        "findings": [
            {
                "path": f.path,
                "line": f.line,
                "column": f.column,
                "code": f.code,
                "name": rule(f.code).name,
                "severity": f.severity.value,
                "message": f.message,
                "fix": f.fix or None,
            }
            for f in outcome.findings
        ],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def as_github(outcome: Outcome) -> Iterator[str]:
    """Workflow commands, one a finding; GitHub shows them at the lines of the change."""
    kinds = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
    for f in outcome.findings:
        place = f"file={_property(f.path)}"
        if f.line:
            place += f",line={f.line},col={f.column}"
        message = f"{f.message} ({f.fix})" if f.fix else f.message
        yield f"::{kinds[f.severity]} {place},title={_property(f.code)}::{_data(message)}"
    yield summary(outcome)


def as_sarif(outcome: Outcome, *, version: str) -> str:
    """A SARIF 2.1.0 log with every rule and its page."""
    from kb.lint.docs import page
    from kb.lint.registry import rules

    known = rules()
    index = {rule.code: i for i, rule in enumerate(known)}
    driver = {
        "name": "agentcompile",
        "semanticVersion": version,
        "rules": [
            {
                "id": rule.code,
                "name": rule.name,
                "shortDescription": {"text": f"{rule.title}."},
                "fullDescription": {"text": rule.body},
                "help": {"text": rule.body, "markdown": page(rule)},
                "defaultConfiguration": {"level": _SARIF_LEVEL[rule.severity]},
            }
            for rule in known
        ],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, index[f.code]) for f in outcome.findings],
            }
        ],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _result(finding: Diagnostic, index: int) -> Mapping[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(finding.path)}}
    if finding.line:
        location["region"] = {"startLine": finding.line, "startColumn": finding.column}
    text = f"{finding.message} ({finding.fix})" if finding.fix else finding.message
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _SARIF_LEVEL[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }


def _snippet(lines: list[str], finding: Diagnostic, paint: Any) -> Iterator[str]:
    if finding.line > len(lines):
        return
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in lines[finding.line - 1])
    column = min(finding.column - 1, len(line))
    if len(line) > WIDTH:  # show the part around the finding
        start = max(0, min(column - WIDTH // 3, len(line) - WIDTH))
        before, after = start > 0, start + WIDTH < len(line)
        line = line[start : start + WIDTH]
        line = f"{'…' if before else line[0]}{line[1:-1]}{'…' if after else line[-1]}"
        column -= start
    gutter = _gutter(finding)
    yield f"{gutter} |"
    yield f"{finding.line:>{len(gutter)}} | {line}"
    yield f"{gutter} | {' ' * column}{paint('^' * _length(line, column))}"


def _length(line: str, column: int) -> int:
    """How much to underline: the word, or the quoted text, that starts at ``column``."""
    rest = line[column:]
    if rest[:1] in ("'", '"') and (end := rest.find(rest[0], 1)) > 0:
        return end + 1
    for i, char in enumerate(rest):
        if char in " ,]}" or (char == ":" and rest[i + 1 : i + 2] in ("", " ")):
            return max(i, 1)
    return max(len(rest), 1)


def _gutter(finding: Diagnostic) -> str:
    return " " * max(len(str(finding.line)), 2)


def _painter(severity: Severity, color: bool) -> Any:
    return (lambda text: f"\x1b[1;{_COLORS[severity]}m{text}\x1b[0m") if color else (lambda text: text)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
