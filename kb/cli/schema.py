"""``agentcompile schema``: the JSON Schema that editors check entries with while they are typed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kb.cli.failure import Failure
from kb.cli.library import LibraryOption
from kb.library import EntryKind, library_root
from kb.schema import schema_text


def command(
    kind: Annotated[EntryKind | None, typer.Argument(help="Print this one; without it both are written.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when a file is out of date.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder to write to; default: site/schema/ of the library.")
    ] = None,
    library: LibraryOption = None,
) -> None:
    """Write the JSON Schema that editors use."""
    if kind is not None and output is None and not check:
        print(schema_text(kind), end="")
        return
    folder = output if output is not None else library_root(library) / "site" / "schema"
    stale = []
    for one in [kind] if kind is not None else list(EntryKind):
        path, text = folder / f"{one.value}.json", schema_text(one)
        if _read(path) == text:
            continue
        if check:
            stale.append(path)
        else:
            _write(path, text)
            print(f"wrote {path}")
    if stale:
        names = ", ".join(str(p) for p in stale)
        raise Failure(f"out of date: {names}; 'agentcompile schema' writes them again", 1)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: cannot be read: {error}") from None


def _write(path: Path, text: str) -> None:
    """Replace the file in one step: an editor that watches it never sees half a schema."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as stream:
            stream.write(text)
        os.chmod(stream.name, 0o644)  # noqa: PTH101 - a path that pathlib would have to wrap first
        Path(stream.name).replace(path)
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror or error}") from None
