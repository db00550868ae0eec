"""Runs the rules: over one file, over all files together, over a change; then waivers, then order.

What one file gives (``FileReport``) depends on its bytes alone, so it can be kept in a cache. Everything that
depends on other files or on the day is done afterwards, on all reports together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from kb.contract import Contract
from kb.diagnostic import Diagnostic
from kb.library import Entry, Library, kind_of, parse_entry
from kb.lint.registry import by_code, rules_of
from kb.lint.rule import (
    ChangeRule,
    ContractRule,
    EntryRule,
    LibraryRule,
    PrincipleRule,
    Revision,
    Subject,
    diagnostic,
)
from kb.lint.summary import Summary, View, summarize
from kb.lint.waiver import Waiver, find_waivers
from kb.place import is_note
from kb.principle import Principle
from kb.yaml import load_bytes


@dataclass(frozen=True, slots=True)
class FileReport:
    """What one file's bytes say: findings before waivers, the waivers, and the summary for cross-file rules."""

    path: str
    findings: tuple[Diagnostic, ...]
    summary: Summary | None
    waivers: tuple[Waiver, ...] = ()


def check_entry(entry: Entry) -> FileReport:
    """Every rule that looks at one file."""
    found = list(entry.findings)
    if entry.model is not None:
        found += _hits(entry)
    known = by_code()
    waivers = find_waivers(entry.document, known, [code for code, rule in known.items() if rule.waivable])
    return FileReport(entry.path, tuple(sorted(set(found))), summarize(entry), waivers)


def _hits(entry: Entry) -> Iterator[Diagnostic]:
    model, subject = entry.model, Subject(entry)
    for of_entries in rules_of(EntryRule):
        yield from (diagnostic(of_entries, entry.path, hit) for hit in of_entries.check(subject))
    if isinstance(model, Principle):
        for of_blocks in rules_of(PrincipleRule):
            yield from (diagnostic(of_blocks, entry.path, hit) for hit in of_blocks.check(model, subject))
    elif isinstance(model, Contract):
        for of_contracts in rules_of(ContractRule):
            yield from (diagnostic(of_contracts, entry.path, hit) for hit in of_contracts.check(model, subject))


def misplaced(path: str) -> FileReport:
    """The report of a file that nothing loads."""
    fix = "principles/<family>/<slug>.yaml or contracts/<id>.yaml"
    return FileReport(path, (Diagnostic(path, 0, 0, "AC302", "nothing loads this file", fix=fix),), None)


def check_library(reports: Iterable[FileReport], view: View) -> list[Diagnostic]:
    """Every rule that compares files."""
    found = [diagnostic(rule, path, hit) for rule in rules_of(LibraryRule) for path, hit in rule.check(view)]
    return [*found, *(f for report in reports for f in report.findings)]


def settle(
    reports: Collection[FileReport], findings: Iterable[Diagnostic], codes: Collection[str], today: date
) -> list[Diagnostic]:
    """Findings of the chosen codes after waivers, with what is wrong with the waivers themselves, sorted."""
    by_path: dict[str, list[Waiver]] = {r.path: list(r.waivers) for r in reports if r.waivers}
    used: set[tuple[str, Waiver]] = set()
    kept: set[Diagnostic] = set()
    waivable = by_code()
    for finding in findings:
        excuse = next((w for w in by_path.get(finding.path, ()) if _covers(w, finding)), None)
        if excuse is not None and waivable[finding.code].waivable:
            used.add((finding.path, excuse))
            if not excuse.is_over(today):
                continue
        kept.add(finding)
    for path, waivers in by_path.items():
        kept.update(_about_waivers(path, waivers, used, codes, today))
    return sorted(f for f in kept if f.code in codes)


def _covers(waiver: Waiver, finding: Diagnostic) -> bool:
    return not waiver.problem and finding.code in waiver.codes and waiver.first <= finding.line <= waiver.last


def _about_waivers(
    path: str, waivers: Iterable[Waiver], used: Collection[tuple[str, Waiver]], codes: Collection[str], today: date
) -> Iterator[Diagnostic]:
    malformed, unused, over = (by_code()[code] for code in ("AC027", "AC028", "AC029"))
    for waiver in waivers:
        place, names = (waiver.line, waiver.column), ", ".join(waiver.codes)
        if waiver.problem:
            yield Diagnostic(
                path, *place, malformed.code, f"this waiver is malformed: {waiver.problem}", malformed.severity
            )
        elif waiver.is_over(today):
            message = f"this waiver of {names} ended on {waiver.until}"
            yield Diagnostic(
                path, *place, over.code, message, over.severity, "fix the finding, or extend it with a reason"
            )
        elif (path, waiver) not in used and all(code in codes for code in waiver.codes):
            yield Diagnostic(
                path, *place, unused.code, f"this waiver of {names} excuses nothing", unused.severity, "remove it"
            )


def view_of(reports: Iterable[FileReport], today: date, exists: Callable[[str], bool | None] | None = None) -> View:
    """What cross-file rules look at."""
    reports = sorted(reports, key=lambda r: r.path)
    summaries = tuple(r.summary for r in reports if r.summary is not None)
    broken = frozenset(
        r.path.split("/", 1)[-1].removesuffix(".yaml") for r in reports if r.summary is None and kind_of(r.path)
    )
    return View(summaries, today, broken, exists) if exists is not None else View(summaries, today, broken)


def lint_files(
    files: Mapping[str, bytes],
    *,
    today: date,
    codes: Collection[str] | None = None,
    exists: Callable[[str], bool | None] | None = None,
) -> list[Diagnostic]:
    """All findings of a library in memory, keyed by path below its root."""
    reports = [r for path in sorted(files) if (r := _report(path, files[path])) is not None]
    findings = check_library(reports, view_of(reports, today, exists))
    return settle(reports, findings, by_code() if codes is None else codes, today)


def lint_change(base: Library, head: Library, *, today: date) -> list[Diagnostic]:
    """All findings of the rules that compare a library with the revision it is based on, sorted."""
    revision = Revision(base, head, today)
    return sorted({diagnostic(rule, path, hit) for rule in rules_of(ChangeRule) for path, hit in rule.check(revision)})


def _report(path: str, data: bytes) -> FileReport | None:
    kind = kind_of(path)
    if kind is None:
        return None if is_note(path.rsplit("/", 1)[-1]) else misplaced(path)
    return check_entry(parse_entry(path, kind, load_bytes(data)))
