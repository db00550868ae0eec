"""The option and the steps that commands over the library's files and revisions share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kb.cli.failure import Failure

if TYPE_CHECKING:
    from kb.git.repository import Repository

LibraryOption = Annotated[
    Path | None, typer.Option("--library", help="Folder of the library; default: the checkout you are in.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RangeArgument = Annotated[
    str,
    typer.Argument(
        metavar="BASE..HEAD", help="Two revisions; BASE...HEAD starts at their common ancestor; BASE: working tree."
    ),
]


@contextmanager
def repository_of(root: Path) -> Iterator[Repository]:
    """The git repository ``root`` is in, closed at the end; what git cannot answer becomes a Failure."""
    from kb.git.errors import GitError
    from kb.git.repository import open_repository

    try:
        with open_repository(root) as repository:
            yield repository
    except GitError as error:
        raise Failure(str(error)) from None
