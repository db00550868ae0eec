"""Where a library is and which of its files are entries. Imports nothing heavy: every command starts here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from kb.cli.failure import Failure

FOLDERS = ("principles", "contracts")
MAX_BYTES = 256 * 1024  # of one entry


class EntryKind(StrEnum):
    """What a file holds, decided by its folder."""

    PRINCIPLE = "principle"
    CONTRACT = "contract"


def library_root(explicit: Path | None = None) -> Path:
    """The library in use.

    ``explicit``, else AGENTCOMPILE_LIBRARY, else the checkout the current directory is in, else the checkout or
    the wheel this package is in. Raises Failure when a named folder does not exist.
    """
    named = explicit or (Path(os.environ["AGENTCOMPILE_LIBRARY"]) if os.environ.get("AGENTCOMPILE_LIBRARY") else None)
    if named is not None:
        if not named.is_dir():
            origin = "--library" if explicit else "AGENTCOMPILE_LIBRARY"
            raise Failure(f"{named}: no such folder ({origin} names a folder with principles/ and contracts/)")
        return named
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_library(folder):
            return folder
    package = Path(__file__).resolve().parent.parent
    installed = package / "agentcompile_data"
    return installed if is_library(installed) and not is_library(package) else package


def is_library(folder: Path) -> bool:
    """True for a folder that holds both principles/ and contracts/."""
    return (folder / "principles").is_dir() and (folder / "contracts").is_dir()


def kind_of(path: str) -> EntryKind | None:
    """What a path below the root is an entry of: ``principles/<family>/<slug>.yaml``, ``contracts/<id>.yaml``."""
    match path.split("/"):
        case ["principles", _, name] if name.endswith(".yaml"):
            return EntryKind.PRINCIPLE
        case ["contracts", name] if name.endswith(".yaml"):
            return EntryKind.CONTRACT
    return None


def entry_paths(root: Path) -> Iterator[str]:
    """Paths of all entry files below ``root``, sorted."""
    found = [
        path.relative_to(root).as_posix()
        for pattern in ("principles/*/*.yaml", "contracts/*.yaml")
        for path in root.glob(pattern)
    ]
    yield from sorted(found)


def is_note(name: str) -> bool:
    """True for a file beside entries that is nobody's mistake: notes, and what tools hide behind a dot."""
    return name.startswith(".") or name.lower().endswith((".md", ".txt")) or name.endswith("~")


def read_regular_file(path: Path | str, limit: int) -> bytes:
    """The first ``limit`` bytes. Raises OSError, also for what is no regular file; never blocks on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        return stream.read(limit)
