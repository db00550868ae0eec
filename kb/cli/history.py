"""``agentcompile history``: the versions of one entry and who changed which field when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kb.cli.library import JsonOption, LibraryOption, repository_of
from kb.library import library_root

if TYPE_CHECKING:
    from kb.git.history import History, Version


def command(
    entry: Annotated[str, typer.Argument(metavar="ID", help="Id of a principle or contract.")],
    library: LibraryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Versions of one entry, newest first, and the last change of every field; renames are followed."""
    from kb.git.history import history

    root = library_root(library)
    with repository_of(root) as repository:
        found = history(repository, root, entry)
    print(json.dumps(_data(found), indent=2, ensure_ascii=False) if as_json else _text(found))


def _text(found: History) -> str:
    from kb.diff.show import sides_text

    lines = [found.id]
    for version in found.versions:
        lines += ["", f"{_who(version)}  {_what(version)}"]
        if version.commit is not None:
            lines.append(f"    {version.commit.subject}")
        for edit in version.edits:
            if edit.path == "version":
                continue
            lines.append(f"    {edit.path}")
            sides = zip("-+", sides_text(edit.before, edit.after), strict=True)
            lines += [f"      {sign} {side}" for sign, side in sides if side]
    if found.fields:
        lines += ["", "last change of each field"]
        width = max(len(blame.path) for blame in found.fields)
        for blame in found.fields:
            last = None if blame.version is None else found.versions[blame.version]
            who = "before this shallow clone begins" if last is None else _who(last)
            number = "" if last is None or last.version is None else f"v{last.version}"
            lines.append(f"    {blame.path:{width}}  {number:4} {who}")
    if found.is_cut:
        lines += ["", "this is a shallow clone and the history is cut; 'git fetch --unshallow' brings the rest"]
    return "\n".join(lines)


def _who(version: Version) -> str:
    if version.commit is None:
        return "working tree, not committed"
    return f"{version.commit.date:%Y-%m-%d}  {version.commit.short}  {version.commit.author}"


def _what(version: Version) -> str:
    words = {
        "cut": "as it was where this shallow clone begins",
        "moved": f"moved to {version.path}",
        "unreadable": "not readable as an entry",
    }
    parts = [words.get(version.event, version.event)]
    if version.version is not None:
        parts.insert(0, f"v{version.version}")
    if version.classes:
        parts.append("(" + ", ".join(version.classes) + ")")
    return " ".join(parts)


def _data(found: History) -> dict[str, Any]:
    versions = [
        {
            "commit": None
            if v.commit is None
            else {
                "hash": v.commit.hash,
                "author": v.commit.author,
                "date": v.commit.date.isoformat(),
                "subject": v.commit.subject,
            },
            "path": v.path,
            "event": v.event,
            "version": v.version,
            "status": v.status,
            "classes": list(v.classes),
            "edits": [{"path": e.path, "before": e.before, "after": e.after} for e in v.edits],
        }
        for v in found.versions
    ]
    fields = {blame.path: blame.version for blame in found.fields}
    return {"id": found.id, "cut": found.is_cut, "versions": versions, "fields": fields}
