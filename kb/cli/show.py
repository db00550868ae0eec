"""``agentcompile show``: one entry, whole, with what refers to it."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.failure import Failure
from kb.cli.library import JsonOption, LibraryOption
from kb.contract import Contract
from kb.library import Entry, Library, library_root, load_library
from kb.principle import Principle

if TYPE_CHECKING:
    from rich.console import RenderableType


def command(
    entry: Annotated[str, typer.Argument(metavar="ID", help="Id of a principle, dead end, mandate or contract.")],
    library: LibraryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one entry and what refers to it."""
    loaded = load_library(library_root(library))
    found = _find(loaded, entry)
    if as_json:
        print(json.dumps(_data(loaded, found), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for part in _page(loaded, found):
        console.print(part, markup=False)


def _find(library: Library, entry_id: str) -> Entry:
    found = library.entry(entry_id)
    if found is not None and found.model is not None:
        return found
    for unreadable in library.entries:
        stem = unreadable.path.split("/", 1)[1].removesuffix(".yaml")
        if unreadable.model is None and stem == entry_id:
            first = unreadable.findings[0] if unreadable.findings else unreadable.path
            raise Failure(f"'{entry_id}' cannot be read: {first}")
    near = near_ids(entry_id, [*library.principles, *library.contracts])
    if near:
        raise Failure(f"no entry '{entry_id}'; did you mean {' or '.join(near)}?")
    raise Failure(f"no entry '{entry_id}' in {library.root}")


def near_ids(entry_id: str, known: list[str], limit: int = 3) -> list[str]:
    """Ids that were probably meant: the same slug in another family first, then the closest spellings."""
    slug = entry_id.rsplit("/", 1)[-1]
    same = [k for k in known if k.rsplit("/", 1)[-1] == slug]
    by_slug = {k.rsplit("/", 1)[-1]: k for k in known}
    close = difflib.get_close_matches(entry_id, known, n=limit, cutoff=0.6)
    close += [by_slug[s] for s in difflib.get_close_matches(slug, list(by_slug), n=limit, cutoff=0.7)]
    return list(dict.fromkeys(same + close))[:limit]


def _data(library: Library, entry: Entry) -> dict[str, Any]:
    assert entry.model is not None
    data = entry.model.model_dump(mode="json")
    extra: dict[str, Any] = {"path": entry.path, "digest": entry.digest, "referred_to_by": _referring(library, entry)}
    if isinstance(entry.model, Contract):
        extra["signatures"] = _signatures(entry.model)
    return {"entry": entry.kind.value, **data, **extra}


def _referring(library: Library, entry: Entry) -> list[dict[str, str]]:
    """Every principle that names this entry, and how."""
    found = []
    for principle in sorted(library.principles.values(), key=lambda p: p.id):
        if isinstance(entry.model, Contract):
            if entry.model.id in principle.patterns:
                found.append({"id": principle.id, "relation": "speaks to it", "kind": principle.kind.value})
            continue
        relations: list[str] = [related.relation for related in principle.related if related.id == entry.id]
        relations += ["supersedes"] if entry.id in principle.supersedes else []
        relations += ["is superseded by"] if principle.superseded_by == entry.id else []
        found += [{"id": principle.id, "relation": r, "kind": principle.kind.value} for r in relations]
    return found


def _signatures(contract: Contract) -> dict[str, str]:
    from kb.dtype import Target
    from kb.signature import signature

    return {target.value: signature(contract, target) for target in Target if target in contract.baselines}


def _page(library: Library, entry: Entry) -> list[RenderableType]:
    from rich.text import Text

    from kb.cli.page import contract_page, principle_page

    model = entry.model
    assert model is not None
    kind = model.kind.value.replace("_", " ") if isinstance(model, Principle) else "contract"
    head = Text.assemble((model.title, "bold"), "\n", f"{model.id}  {kind}  {model.status.value}  v{model.version}  ")
    head.append(entry.path, style="dim")
    body = principle_page(model) if isinstance(model, Principle) else contract_page(model, _signatures(model))
    page: list[RenderableType] = [head, *body]
    referring = _referring(library, entry)
    if referring:
        lines = [f"{r['id']}  ({r['relation']}, {r['kind'].replace('_', ' ')})" for r in referring]
        page.append(Text.assemble("\n", ("Referred to by", "bold"), "\n  " + "\n  ".join(lines)))
    return page
