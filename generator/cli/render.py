"""``agentcompile render``: what an author would be told, and why."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated

import typer

from generator.cli.arguments import (
    ALSO_HELP,
    BLOCKS_HELP,
    DIMS_HELP,
    check_also,
    check_arch,
    parse_dims,
    resolve_contract,
)
from generator.prompt import Prompt
from generator.render import DEFAULT_BUDGET, RenderError, Request, render
from generator.selection import Blocks
from kb.cli.failure import Failure
from kb.dtype import DType, Target
from kb.library import Library, library_root, load_library


def command(
    contract: Annotated[str, typer.Argument(help="Contract id.")],
    target: Annotated[Target, typer.Option(help="Target.")] = Target.CUDA,
    arch: Annotated[str | None, typer.Option(help="Architecture, such as sm_90 or x86_64.")] = None,
    also: Annotated[list[str] | None, typer.Option(help=ALSO_HELP)] = None,
    dims: Annotated[list[str] | None, typer.Option(help=DIMS_HELP)] = None,
    dtype: Annotated[DType | None, typer.Option(help="Storage dtype T.")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="A feature the model has; may be repeated.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Read bandwidth in GB/s, for the floor in µs.")] = None,
    budget: Annotated[int, typer.Option(help="Most tokens of the prompt (estimated).")] = DEFAULT_BUDGET,
    blocks: Annotated[Blocks, typer.Option(help=BLOCKS_HELP)] = Blocks.ALL,
    drafts: Annotated[bool, typer.Option("--drafts", help="Draft blocks too.")] = False,
    diff: Annotated[str | None, typer.Option(metavar="BASE", help="Show what changed since this revision.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say for every block why it is in or out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print prompt and manifest as JSON.")] = False,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
) -> None:
    """Print the prompt for a contract."""
    loaded = load_library(library_root(library))
    resolve_contract(loaded, contract)
    request = Request(
        target=target,
        arch=check_arch(target, arch),
        dims=tuple(parse_dims(d, loaded.contracts[contract]) for d in dims or []),
        dtype=dtype,
        features=frozenset(feature) if feature else None,
        bandwidth_gbps=bandwidth,
        budget=budget,
        with_drafts=drafts,
        kinds=blocks.kinds,
        also=check_also(target, also),
    )
    prompt = _render(loaded, contract, request)
    if diff is not None:
        _print_diff(prompt, loaded, contract, request, diff)
    elif as_json:
        data = {"prompt": prompt.text, "manifest": prompt.manifest.model_dump(mode="json")}
        print(json.dumps(data, indent=2, ensure_ascii=False))
    elif explain:
        _print_decisions(prompt)
    else:
        print(prompt.text, end="")


def _render(library: Library, contract: str, request: Request) -> Prompt:
    try:
        return render(library.contracts[contract], library.principles, request)
    except RenderError as error:
        raise Failure(str(error), 1) from None


def _print_decisions(prompt: Prompt) -> None:
    manifest = prompt.manifest
    for decision in manifest.decisions:
        print(f"{'in ' if decision.included else 'out'}  {decision.id}  ({decision.tokens} tokens)  {decision.reason}")
    total = manifest.prefix_tokens + manifest.history_tokens
    kept = sum(1 for d in manifest.decisions if d.included)
    print(f"{kept} of {len(manifest.decisions)} blocks, {total} of {manifest.budget} tokens (estimated)")


def _print_diff(prompt: Prompt, library: Library, contract: str, request: Request, base: str) -> None:
    from kb.git.errors import GitError
    from kb.git.repository import open_repository
    from kb.git.snapshot import load_revision

    try:
        with open_repository(library.root) as repository:
            before = load_revision(repository, library.root, repository.resolve(base))
    except GitError as error:
        raise Failure(str(error)) from None
    old = _render(before, contract, request).text if contract in before.contracts else ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), prompt.text.splitlines(keepends=True), f"{contract} at {base}", contract
    )
    text = "".join(lines)
    print(text if text else f"the prompt is the same as at {base}")
