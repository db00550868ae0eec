"""``agentcompile doctor``: what this machine has, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from validator.doctor import Check

_STYLES = {"ok": "green", "missing": "yellow", "problem": "red"}


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show compilers, GPU, tools and sandbox layers, and how to get what is missing.

    Exit code 0, whatever is missing: everything here is optional for something.
    """
    from validator.doctor import examine

    checks = examine()
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
        return
    _print(checks)


def _print(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)
    width = max(len(check.name) for check in checks)
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            console.print(Text(group, style="bold"))
        line = Text(f"  {check.standing:<8}", style=_STYLES[check.standing])
        console.print(line.append(f"{check.name:<{width}}  {check.found}", style="default"))
        if check.advice:
            console.print(Text(f"{'':<{width + 12}}→ {check.advice}", style="dim"))
    short = sum(check.standing != "ok" for check in checks)
    console.print(f"{len(checks)} looked for, {short} missing or in need of attention")
