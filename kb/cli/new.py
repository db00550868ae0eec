"""``agentcompile new``: start an entry as a draft that loads, in the right folder, never over another file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kb.cli.failure import Failure
from kb.cli.library import JsonOption, LibraryOption
from kb.cli.questions import Answer, Question, answers
from kb.cli.show import near_ids
from kb.library import EntryKind, Library, library_root, load_library, parse_entry
from kb.principle import Kind
from kb.skeleton import NewContract, NewPrinciple, contract_text, principle_text
from kb.yaml import load_text


class Sort(StrEnum):
    """What can be started."""

    PRINCIPLE = "principle"
    DEAD_END = "dead-end"
    MANDATE = "mandate"
    CONTRACT = "contract"


_KINDS = {Sort.PRINCIPLE: Kind.DECISION, Sort.DEAD_END: Kind.DEAD_END, Sort.MANDATE: Kind.MANDATE}
_SLUG = r"[a-z0-9]+(-[a-z0-9]+)*"
_IDS = {
    EntryKind.PRINCIPLE: (rf"{_SLUG}/{_SLUG}", "an id is family/slug, words of a-z and 0-9 joined by '-'"),
    EntryKind.CONTRACT: (r"[a-z][a-z0-9]*(_[a-z0-9]+)*", "an id is words of a-z and 0-9 joined by '_'"),
}
_NEXT = {
    EntryKind.PRINCIPLE: "fill in 'when' and 'effect', then run 'agentcompile check'",
    EntryKind.CONTRACT: "fill in the interface, then run 'agentcompile check'",
}


def command(
    sort: Annotated[Sort, typer.Argument(metavar="principle|dead-end|mandate|contract", help="What to start.")],
    entry: Annotated[
        str | None, typer.Argument(metavar="ID", help="family/slug; of a contract words joined by _.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="One line.")] = None,
    pattern: Annotated[list[str] | None, typer.Option(help="Contract it speaks to; may be repeated.")] = None,
    claim: Annotated[str | None, typer.Option(help="What to do, or not to do, in imperative prose.")] = None,
    why: Annotated[str | None, typer.Option(help="The mechanism.")] = None,
    evidence: Annotated[str | None, typer.Option(help="What was compared or observed.")] = None,
    reference: Annotated[str | None, typer.Option(help="Where the evidence was published.")] = None,
    value: Annotated[str | None, typer.Option(help="Its number and unit, such as '0.93 ratio'.")] = None,
    retry_when: Annotated[str | None, typer.Option(help="Dead end: what would make another try worth it.")] = None,
    author: Annotated[str | None, typer.Option(help="Default: git's user.name.")] = None,
    family: Annotated[str | None, typer.Option(help="Contract: pattern family, words joined by -.")] = None,
    summary: Annotated[str | None, typer.Option(help="Contract: what it computes, in a sentence.")] = None,
    semantics: Annotated[str | None, typer.Option(help="Contract: the mathematics.")] = None,
    library: LibraryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a principle, dead end, mandate or contract; what no flag gives is asked for in a terminal."""
    known = _library(library)
    given: dict[str, str | list[str] | None] = {
        "ID": entry,
        "--title": title,
        "--pattern": pattern,
        "--claim": claim,
        "--why": why,
        "--evidence": evidence,
        "--reference": reference,
        "--value": value,
        "--retry-when": retry_when,
        "--author": author,
        "--family": family,
        "--summary": summary,
        "--semantics": semantics,
    }
    if sort is Sort.CONTRACT:
        kind, found = EntryKind.CONTRACT, answers(_contract_questions(known), given)
        text = contract_text(_new_contract(found))
    else:
        kind, found = EntryKind.PRINCIPLE, answers(_principle_questions(_KINDS[sort], known), given)
        text = principle_text(_new_principle(_KINDS[sort], found), _today())
    _write(known, kind, str(found["ID"]), text, as_json)


def _contract_questions(library: Library) -> list[Question]:
    return [
        Question("ID", "Id, such as gated_mlp_up", check=_id_check(EntryKind.CONTRACT, library)),
        Question("--title", "Title"),
        Question("--family", "Family, such as gated-mlp", check=_slug),
        Question("--summary", "What it computes, in a sentence"),
        Question("--semantics", "The mathematics, such as out = round_T(x @ w^T)"),
    ]


def _principle_questions(kind: Kind, library: Library) -> list[Question]:
    dead_end = kind is Kind.DEAD_END
    questions = [
        Question("ID", "Id, family/slug", check=_id_check(EntryKind.PRINCIPLE, library)),
        Question("--title", "Title, a warning" if dead_end else "Title, an imperative"),
        Question("--pattern", "Contracts it speaks to", many=True, check=_contract_check(library)),
        Question("--claim", "What not to do" if dead_end else "What to do"),
        Question("--why", "The mechanism: why it fails" if dead_end else "The mechanism: why it works"),
        Question("--evidence", "Evidence: what was compared or observed"),
        # A dead end is only worth reading with the number that ended it and where that number is from.
        Question("--reference", "Where that was published (URL, owner/name#number, arXiv id)", optional=not dead_end),
        Question("--value", "Its number and unit, such as 0.93 ratio", optional=not dead_end, check=_parse_value),
    ]
    if dead_end:
        questions.append(Question("--retry-when", "What would have to change for another try"))
    return [*questions, Question("--author", "Author", default=_git_user(library.root))]


def _new_contract(said: Mapping[str, Answer]) -> NewContract:
    return NewContract(*(str(said[name]) for name in ("ID", "--title", "--family", "--summary", "--semantics")))


def _new_principle(kind: Kind, said: Mapping[str, Answer]) -> NewPrinciple:
    patterns = said["--pattern"]
    return NewPrinciple(
        id=str(said["ID"]),
        kind=kind,
        title=str(said["--title"]),
        patterns=patterns if isinstance(patterns, list) else [str(patterns)],
        claim=str(said["--claim"]),
        why=str(said["--why"]),
        evidence=str(said["--evidence"]),
        author=str(said["--author"]),
        reference=str(said["--reference"]) if said["--reference"] else None,
        value=_parse_value(str(said["--value"])) if said["--value"] else None,
        retry_when=str(said["--retry-when"]) if kind is Kind.DEAD_END else None,
    )


def _library(explicit: Path | None) -> Library:
    root = library_root(explicit)
    if root.name == "agentcompile_data":
        raise Failure("the library in use came with the installation; run this in a clone, or name one with --library")
    return load_library(root)


def _write(library: Library, kind: EntryKind, entry_id: str, text: str, as_json: bool) -> None:
    """Check that the text loads, then create the file; an existing one is never touched."""
    path = f"{'principles' if kind is EntryKind.PRINCIPLE else 'contracts'}/{entry_id}.yaml"
    checked = parse_entry(path, kind, load_text(text))
    if checked.findings:
        raise Failure(f"{entry_id}: {checked.findings[0].message}; nothing was written")
    place = library.root / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise Failure(_taken(entry_id, path)) from None
    except OSError as error:
        raise Failure(f"{place}: cannot be written: {error.strerror or error}") from None
    if as_json:
        print(json.dumps({"id": entry_id, "path": path, "file": str(place)}))
    else:
        print(f"wrote {place}\nnext: {_NEXT[kind]}")


def _id_check(kind: EntryKind, library: Library) -> Callable[[str], None]:
    shape, words = _IDS[kind]
    folder = "principles" if kind is EntryKind.PRINCIPLE else "contracts"

    def check(value: str) -> None:
        if not re.fullmatch(shape, value):
            raise ValueError(f"'{value}': {words}")
        known = library.entry(value)
        path = known.path if known is not None else f"{folder}/{value}.yaml"
        if known is not None or (library.root / path).exists():
            raise ValueError(_taken(value, path))

    return check


def _taken(entry_id: str, path: str) -> str:
    return f"'{entry_id}' exists: {path}; ids are never reused, choose another"


def _contract_check(library: Library) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in library.contracts:
            near = near_ids(value, list(library.contracts))
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(library.contracts))}"
            raise ValueError(f"no contract '{value}'; {hint}")

    return check


def _slug(value: str) -> None:
    if not re.fullmatch(_SLUG, value):
        raise ValueError(f"'{value}': words of a-z and 0-9 joined by '-'")


def _parse_value(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*(\S.*)", text.strip())
    if match is None:
        raise ValueError(f"'{text}': a number and a unit are needed, such as '0.93 ratio'")
    return float(match[1]), match[2]


def _git_user(root: Path) -> str | None:
    from kb.git.errors import GitError
    from kb.git.repository import open_repository

    try:
        with open_repository(root) as repository:
            return repository.user_name()
    except GitError:
        return None


def _today() -> date:
    return datetime.now(UTC).date()
