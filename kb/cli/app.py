"""Composition root: the table of commands, each imported only when it is asked for.

``agentcompile check`` must not import torch and ``--help`` must answer at once, so the table holds names and help
lines, and a command's module is imported by its first use.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kb.cli.failure import Failure

# name -> (module, help line). A module exposes `app: typer.Typer` (a group) or `command` (one function).
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("kb.cli.check", "Check principles and contracts."),
    "new": ("kb.cli.new", "Start a principle, dead end or contract."),
    "show": ("kb.cli.show", "Show one entry."),
    "schema": ("kb.cli.schema", "Write the JSON Schema that editors use."),
    "diff": ("kb.cli.diff", "Semantic diff of two revisions."),
    "history": ("kb.cli.history", "Versions of one entry, field by field."),
    "review": ("kb.cli.review", "One report for a pull request."),
    "render": ("generator.cli.render", "Print the prompt for a contract."),
    "generate": ("generator.cli.generate", "Run generation rounds for one contract."),
    "regenerate": ("generator.cli.regenerate", "Kernels for a whole model: reuse, search, measure."),
    "distill": ("generator.cli.distill", "Draft principles from a reference kernel."),
    "compile": ("generator.cli.compile", "Compile a module to kernels that are judged, and a folder that builds."),
    "validate": ("validator.cli.validate", "Judge a candidate kernel."),
    "kernels": ("kb.cli.kernels", "Look after the kernel store."),
    "run": ("runtime.cli.run", "Run a model on a prompt."),
    "bench": ("runtime.cli.bench", "Measure a model's decoding."),
    "why": ("runtime.cli.why", "Which kernel runs at which site, and why."),
    "doctor": ("validator.cli.doctor", "What this machine has and what is missing."),
    "site": ("kb.cli.site", "Build the documentation site, or serve it."),
}


class LazyGroup(TyperGroup):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        text = COMMANDS[name][1]
        if ctx.resilient_parsing or _only_listing():
            return TyperCommand(name, short_help=text, help=text)
        return load_command(name)


def load_command(name: str) -> Any:
    """The click command of a row of the table, its module imported. Raises ImportError."""
    loaded = importlib.import_module(COMMANDS[name][0])
    if hasattr(loaded, "app"):
        command = typer.main.get_command(loaded.app)
    else:
        single = typer.Typer(add_completion=False)
        single.command(name)(loaded.command)
        command = typer.main.get_command(single)
    command.name = name
    return command


def _only_listing() -> bool:
    """True while the group's own help is printed: the table's help lines are enough."""
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    return not any(a in COMMANDS for a in arguments)


app = typer.Typer(
    cls=LazyGroup,
    name="agentcompile",
    help="A knowledge base of decode-kernel engineering that produces kernels, checks them and runs them.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error.")) -> None:
    if debug:
        os.environ["AGENTCOMPILE_DEBUG"] = "1"


def main() -> Any:
    """Entry point. Exit codes: 0 fine, 1 findings or a gate failed, 2 bad usage or unreadable input."""
    try:
        app()
    except Failure as failure:
        if os.environ.get("AGENTCOMPILE_DEBUG"):
            traceback.print_exc()
        print(f"agentcompile: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        print("agentcompile: interrupted", file=sys.stderr)
        sys.exit(130)
