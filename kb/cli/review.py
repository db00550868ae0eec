"""``agentcompile review``: one report for a pull request."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kb.cli.library import JsonOption, LibraryOption, RangeArgument, repository_of
from kb.dtype import Target
from kb.library import Library, library_root

if TYPE_CHECKING:
    from kb.git.revisions import Endpoints
    from kb.review import PromptFacts, Review
    from kb.review.report import Renderer


class Format(StrEnum):
    """How the report is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def command(
    revisions: RangeArgument = "HEAD",
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
    library: LibraryOption = None,
    as_json: JsonOption = False,
) -> None:
    """One report for a pull request: new findings, semantic diff, prompts touched, kernels made stale.

    Exits 1 when the change brings an error.
    """
    from kb.git.revisions import endpoints
    from kb.git.snapshot import load_pair
    from kb.review.show import review_markdown, review_text

    root = library_root(library)
    with repository_of(root) as repository:
        ends = endpoints(repository, revisions)
        old, new = load_pair(repository, root, ends)
    review = _review(root, ends, old, new)
    if as_json or output is Format.JSON:
        print(json.dumps(review.as_json(), indent=2, ensure_ascii=False))
    else:
        print(review_markdown(review) if output is Format.MARKDOWN else review_text(review), end="")
    if review.has_errors:
        raise typer.Exit(1)


def _review(root: Path, ends: Endpoints, old: Library, new: Library) -> Review:
    from kb.diff import diff_libraries
    from kb.lint.run import existence
    from kb.review import Review, changed_prompts, made_stale
    from kb.review.lint import findings_of_change
    from kb.store import KernelStore

    base, head = ends.labels()
    diff = diff_libraries(old, new, base=base, head=head)
    today = datetime.now(UTC).date()
    findings, known = findings_of_change(old, new, today=today, exists=existence(root))
    render = _renderer()
    kernels, damaged = KernelStore(root / "kernels").entries()
    return Review(
        diff=diff,
        findings=findings,
        known_findings=known,
        prompts=None if render is None else changed_prompts(old, new, diff, render),
        stale=made_stale(old, new, [kernel.manifest for kernel in kernels]),
        damaged=tuple(damaged),
    )


def _renderer() -> Renderer | None:
    """Prompts are rendered by a package above this one, which an installation may lack."""
    from kb.review import PromptFacts

    try:
        module = importlib.import_module("generator.render")
    except ImportError:
        return None

    def facts(library: Library, contract: str, target: Target) -> PromptFacts:
        try:
            request = module.Request(target=target)
            manifest = module.render(library.contracts[contract], library.principles, request).manifest
        except module.RenderError as error:
            return PromptFacts(error=str(error))
        blocks = {block.id: block.digest for block in manifest.blocks}
        return PromptFacts(manifest.prompt_digest, manifest.prefix_tokens, blocks)

    return facts
