"""``agentcompile check``: every finding of a library, sorted, in the format that is wanted."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kb.cli.failure import Failure
from kb.cli.library import JsonOption, LibraryOption

if TYPE_CHECKING:
    from kb.lint.run import Outcome


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


PathsArgument = Annotated[list[Path] | None, typer.Argument(help="Files or folders to report on; all, when left out.")]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", metavar="CODES", help="Only rules whose code starts so: AC1,AC305.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="CODES", help="No rules whose code starts so.")
]


def command(
    paths: PathsArgument = None,
    library: LibraryOption = None,
    output: Annotated[Format, typer.Option("--format", help="How findings are printed.")] = Format.TEXT,
    as_json: JsonOption = False,
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail, too.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")] = False,
    list_rules: Annotated[bool, typer.Option("--rules", help="List the rules.")] = False,
    explain: Annotated[str | None, typer.Option("--explain", metavar="CODE", help="Print a rule's page.")] = None,
) -> None:
    """Check principles and contracts.

    Exit codes: 0 no errors (with --strict, no warnings either), 1 findings, 2 bad usage or a file that cannot be read.
    """
    if explain is not None:
        from kb.lint.docs import page
        from kb.lint.registry import rule

        typer.echo(page(rule(explain)), nl=False)
        return
    if list_rules:
        _print_rules(as_json or output is Format.JSON)
        return
    from kb.diagnostic import Severity

    with _collector_paused():
        outcome = _check(_library(library, paths or []), paths or [], _codes(select or [], ignore or []), not no_cache)
        _print(outcome, Format.JSON if as_json else output)
    if outcome.unreadable:
        raise typer.Exit(2)
    if outcome.count(Severity.ERROR) or (strict and outcome.count(Severity.WARNING)):
        raise typer.Exit(1)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A check makes many small objects and hardly a cycle; looking for cycles takes a sixth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check(root: Path, paths: list[Path], codes: frozenset[str] | None, cached: bool) -> Outcome:
    from kb.lint.cache import open_cache
    from kb.lint.run import check

    today = datetime.now(UTC).date()
    return check(root, paths, codes=codes, today=today, cache=open_cache(root) if cached else None)


def _codes(select: list[str], ignore: list[str]) -> frozenset[str] | None:
    """The chosen codes; None for all, so that no rule need be loaded to know them."""
    selected, ignored = (
        [p.strip() for text in group for p in text.split(",") if p.strip()] for group in (select, ignore)
    )
    if not selected and not ignored:
        return None
    from kb.lint.registry import chosen

    return chosen(selected, ignored)


def _split(groups: list[str]) -> list[str]:
    return [prefix.strip() for group in groups for prefix in group.split(",") if prefix.strip()]


def _library(explicit: Path | None, paths: list[Path]) -> Path:
    """The library that is checked: named, or the one the paths lie in, or the one in use."""
    from kb.place import is_library, library_root

    if explicit is None and not os.environ.get("AGENTCOMPILE_LIBRARY"):
        around = {
            folder for path in paths for folder in [next((f for f in _above(path) if is_library(f)), None)] if folder
        }
        if len(around) > 1:
            names = ", ".join(str(f) for f in sorted(around))
            raise Failure(f"the paths lie in several libraries ({names}); check one at a time")
        if around:
            return around.pop()
    return library_root(explicit)


def _above(path: Path) -> list[Path]:
    full = path.resolve()
    return [full, *full.parents]


def _print(outcome: Outcome, output: Format) -> None:
    from kb.lint import output as formats

    match output:
        case Format.JSON:
            print(formats.as_json(outcome))
        case Format.GITHUB:
            print(*formats.as_github(outcome), sep="\n")
        case Format.SARIF:
            from importlib.metadata import PackageNotFoundError, version

            try:
                number = version("agentcompile")
            except PackageNotFoundError:
                number = "0"
            print(formats.as_sarif(outcome, version=number))
        case Format.TEXT:
            color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            print(*formats.as_text(outcome, color=color), sep="\n")


def _print_rules(as_json: bool) -> None:
    from kb.lint.registry import rules

    if as_json:
        import json

        data = [
            {"code": r.code, "name": r.name, "severity": r.severity.value, "title": r.title, "waivable": r.waivable}
            for r in rules()
        ]
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for rule in rules():
        print(f"{rule.code}  {rule.severity.value:7}  {rule.title}")
