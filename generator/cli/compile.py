"""``agentcompile compile``: from a module or checkpoint to judged kernels, a folder that builds alone, and a report."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kb.cli.failure import Failure
from kb.dtype import Target

if TYPE_CHECKING:
    from generator.compile.pipeline import Compilation
    from generator.providers.protocol import Provider


def command(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_DIR|MODULE:FUNCTION",
            help="A checkpoint's folder, or a function that returns (module, args[, kwargs[, dynamic dims]]).",
        ),
    ],
    target: Annotated[Target, typer.Option(help="Target.")] = Target.CPU,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; default: .agentcompile/compile-NAME-TARGET here.")
    ] = None,
    advice: Annotated[
        str | None, typer.Option("--advice", help="Ask anthropic, exchange:FOLDER or replay:FILE for advice.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the reply of an exchange folder.")] = 0.0,
    plans: Annotated[int, typer.Option(min=1, max=64, help="Most plans to judge for a kind of region.")] = 4,
    budget: Annotated[float | None, typer.Option(help="Seconds of judging; what is left keeps the framework.")] = None,
    kinds: Annotated[int | None, typer.Option(min=0, help="Most kinds of regions to judge, the largest first.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the full trial of what wins.")] = False,
    untimed: Annotated[bool, typer.Option("--untimed", help="Check only; kept are the first valid plans.")] = False,
    keep_slower: Annotated[
        bool, typer.Option("--keep-slower", help="Keep the fastest valid plan even where the framework is faster.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a checkpoint's example call.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Cached tokens of a decoder's example call.")] = 16,
    length: Annotated[int, typer.Option(min=1, help="Tokens of an encoder's example call.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was decided as JSON.")] = False,
) -> None:
    """Compile a module: regions, plans, the gates, the fastest valid kernel or the framework's own operators.

    Run the same command again to go on after an interruption: what was judged is not judged again.
    """
    from generator.capture import Example
    from generator.compile.emit import emit, metadata
    from generator.compile.pipeline import Settings, compile_module
    from generator.compile.subject import SubjectError, load_subject
    from generator.compile.tournament import Effort, Rule

    provider = _provider(advice, wait)
    folder = out if out is not None else Path(".agentcompile") / f"compile-{_slug(subject)}-{target.value}"
    effort = Effort(
        whole=not (quick or untimed),
        timed=not untimed,
        seconds=budget,
        kinds=kinds,
        rule=Rule.VALID if keep_slower or untimed else Rule.FASTEST,
    )
    try:
        loaded = load_subject(subject, Example(batch=batch, context=context, length=length))
    except SubjectError as error:
        raise Failure(str(error)) from None
    settings = Settings(target, folder / "judged", plans=plans, effort=effort, provider=provider)
    try:
        result = compile_module(loaded, settings, on_event=lambda text: print(text, file=sys.stderr, flush=True))
        files = emit(result, folder)
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror}") from None
    if as_json:
        print(json.dumps(metadata(result) | {"out": str(folder), "files": files}, indent=1, default=str))
    else:
        _print(result, folder)
    if result.whole is None or not result.whole.same:
        raise typer.Exit(1)


def _provider(name: str | None, wait: float) -> Provider | None:
    from generator.providers.protocol import ProviderError
    from generator.run import make_provider

    if name is None:
        return None
    try:
        return make_provider(name, wait=wait)
    except ProviderError as error:
        raise Failure(f"--advice: {error}") from None


def _slug(subject: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", Path(subject).name.lower()).strip("-") or "module"


def _print(result: Compilation, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from generator.compile.findings import rows, summary, whole_lines

    console = Console()
    console.print(summary(result), markup=False, highlight=False)
    table = Table("region", "of them", "framework µs", "best µs", "kept", "why")
    for row in rows(result):
        if row.best or row.is_kernel:
            table.add_row(row.label, str(row.regions), row.framework, row.best, row.kept, row.why)
    if table.row_count:
        console.print(table)
    for problem in result.problems:
        console.print(f"left to the framework: {problem}", markup=False, highlight=False)
    for line in whole_lines(result):
        console.print(line, markup=False, highlight=False)
    console.print(f"written to {folder} (report.md, report.html)", markup=False, highlight=False)
