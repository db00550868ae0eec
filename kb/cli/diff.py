"""``agentcompile diff``: what changed between two revisions, in words."""

from __future__ import annotations

import json

import typer

from kb.cli.library import JsonOption, LibraryOption, RangeArgument, repository_of
from kb.library import library_root


def command(
    revisions: RangeArgument = "HEAD",
    library: LibraryOption = None,
    as_json: JsonOption = False,
    markdown: bool = typer.Option(False, "--markdown", help="Print Markdown."),
) -> None:
    """Semantic diff of two revisions: entries, fields, and what each change means."""
    from kb.diff import diff_libraries
    from kb.diff.show import as_markdown, as_text
    from kb.git.revisions import endpoints
    from kb.git.snapshot import load_pair

    root = library_root(library)
    with repository_of(root) as repository:
        ends = endpoints(repository, revisions)
        old, new = load_pair(repository, root, ends)
    base, head = ends.labels()
    diff = diff_libraries(old, new, base=base, head=head)
    if as_json:
        print(json.dumps(diff.as_json(), indent=2, ensure_ascii=False))
    else:
        print(as_markdown(diff) if markdown else as_text(diff), end="")
