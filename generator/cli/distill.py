"""``agentcompile distill``: draft principles from a reference kernel and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from generator.cli.arguments import resolve_contract
from kb.cli.failure import Failure
from kb.library import library_root, load_library, load_library_from

MAX_BYTES = 400_000


def command(
    contract: Annotated[str, typer.Argument(help="Contract the kernel is for.")],
    reference: Annotated[Path, typer.Option("--reference", help="Source of the reference kernel.")],
    record: Annotated[Path, typer.Option("--record", help="Measurements: a record under bench/results/.")],
    output: Annotated[Path, typer.Option("--output", help="Folder for the drafts.")],
    author: Annotated[str, typer.Option(help="Who answers for the drafts.")],
    provider: Annotated[str, typer.Option(help="anthropic, exchange:FOLDER or replay:FILE.")] = "anthropic",
    wait: Annotated[float, typer.Option(help="Seconds to wait for each reply of an exchange folder.")] = 0.0,
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the library.")] = None,
) -> None:
    """Draft principle blocks in prose from a reference kernel; no run of its tokens may survive in them."""
    from generator.distill import DistillError, distill
    from generator.providers.protocol import PendingError, ProviderError
    from generator.run import make_provider
    from kb.store.durable import replace_file
    from kb.yaml.emit import emit_document

    loaded = load_library(library_root(library))
    chosen = resolve_contract(loaded, contract)

    try:
        drafts = distill(
            chosen,
            _read(reference),
            _read(record),
            record=str(record),
            provider=make_provider(provider, wait=wait),
            author=author,
            today=datetime.now(UTC).date(),
            lint=lint_draft,
        )
    except PendingError as error:
        raise Failure(str(error), 1) from None
    except (ProviderError, DistillError) as error:
        raise Failure(str(error)) from None
    output.mkdir(parents=True, exist_ok=True)
    for draft in drafts:
        path = output / f"{draft.principle.id.rsplit('/', 1)[1]}.yaml"
        if path.exists():
            raise Failure(f"{path}: exists; move it, or choose another --output")
        replace_file(path, emit_document(dict(draft.data)).encode())
        print(f"drafted {draft.principle.id}: {path}")
    print(f"{len(drafts)} drafts; read them, then move them under principles/ and accept them by pull request")


def lint_draft(data: Mapping[str, Any]) -> list[str]:
    """Findings of the rules that look at one file, for a block in the form of its YAML file."""
    from kb.lint.engine import check_entry
    from kb.yaml.emit import emit_document

    path = f"principles/{data['id']}.yaml"
    library = load_library_from({path: emit_document(dict(data)).encode()}, Path())
    return [f"{d.code}: {d.message}" for entry in library.entries for d in check_entry(entry).findings]


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        if len(content) > MAX_BYTES:
            raise Failure(f"{path}: {len(content)} bytes; {MAX_BYTES} at most")
        return content.decode("utf-8")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failure(f"{path}: not UTF-8 text") from None
