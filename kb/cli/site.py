"""``agentcompile site``: build the documentation site and look at it."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.failure import Failure
from kb.cli.library import JsonOption, LibraryOption
from kb.library import library_root

if TYPE_CHECKING:
    from kb.site.build import Built

app = typer.Typer(help="Build the documentation site, or serve it.", no_args_is_help=True)

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the pages; default: build/site in the library.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict/--no-strict", help="Fail on a warning, an unreadable entry or a damaged kernel.")
]


@app.command()
def build(
    output: OutputOption = None, library: LibraryOption = None, strict: StrictOption = True, as_json: JsonOption = False
) -> None:
    """Build all pages from the library, the kernel store and the hand-written sources."""
    built = _build(library_root(library), output, strict)
    if as_json:
        print(json.dumps({"folder": str(built.folder), "commit": built.commit, "pages": dict(built.pages)}, indent=2))
        return
    total = sum(built.pages.values())
    parts = ", ".join(f"{number} {section}" for section, number in built.pages.items())
    print(f"{built.folder}: {total} pages ({parts})")


@app.command()
def serve(
    output: OutputOption = None,
    library: LibraryOption = None,
    strict: StrictOption = True,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0: any free one.")
    ] = 8000,
) -> None:
    """Build all pages and serve them on this machine until interrupted."""
    built = _build(library_root(library), output, strict)
    handler = functools.partial(_Quiet, directory=str(built.folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise Failure(f"port {port} cannot be used ({error.strerror}); name another with --port", 2) from None
    with server:
        print(f"http://127.0.0.1:{server.server_address[1]}/ shows {built.folder}; Ctrl-C ends it", flush=True)
        server.serve_forever()


def _build(root: Path, output: Path | None, strict: bool) -> Built:
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocs") is None:
        raise Failure("mkdocs-material is not installed; pip install 'agentcompile[docs]'", 2)
    from kb.site.build import build as build_site
    from kb.site.hand_written import SiteError

    try:
        return build_site(root, output or root / "build" / "site", documented_commands(), strict=strict)
    except SiteError as error:
        raise Failure(str(error), 1) from None


def documented_commands() -> dict[str, Any]:
    """Every command that is there, loaded; one whose packages are not installed has its help line only."""
    from typer.core import TyperCommand

    from kb.cli.app import COMMANDS, load_command

    found: dict[str, Any] = {}
    for name, (module, text) in COMMANDS.items():
        if importlib.util.find_spec(module) is None:
            continue
        try:
            found[name] = load_command(name)
        except ImportError:
            found[name] = TyperCommand(name, help=text)
    return found


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing: the page's own errors show in the browser."""

    def log_message(self, format: str, *args: object) -> None:
        pass
