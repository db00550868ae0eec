"""The versions of one entry: who changed which field when, uncommitted changes included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kb.diff import ChangeClass, diff_entry
from kb.diff.fields import differing_fields
from kb.git.errors import GitError
from kb.git.lineage import Blobs, Step, find_path, lineage
from kb.git.repository import Commit, Repository
from kb.git.snapshot import FOLDERS
from kb.library import entry_paths, kind_of, parse_entry
from kb.yaml import Document, load_bytes
from kb.yaml.source import read_bytes


@dataclass(frozen=True, slots=True)
class FieldEdit:
    """One field a version changed, by dotted path; None means absent."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Version:
    """One state of the entry. ``commit`` is None for what the working tree holds and no commit does.

    ``event``: ``added``, ``changed``, ``moved``, ``removed``, ``unreadable`` (says nothing about its fields), or
    ``cut`` (first commit of a shallow clone: what it changed is not known).
    """

    commit: Commit | None
    path: str
    event: str
    version: int | None
    status: str | None
    edits: tuple[FieldEdit, ...] = ()
    classes: tuple[ChangeClass, ...] = ()


@dataclass(frozen=True, slots=True)
class Blame:
    """Which version last changed a field. ``version`` indexes History.versions; None where a shallow clone hides it."""

    path: str
    version: int | None


@dataclass(frozen=True, slots=True)
class History:
    """Versions newest first, and for every field of the newest readable one the version that last changed it."""

    id: str
    versions: tuple[Version, ...]
    fields: tuple[Blame, ...]

    @property
    def is_cut(self) -> bool:
        """True when a shallow clone hides the beginning."""
        return any(v.event == "cut" for v in self.versions)


def history(repository: Repository, root: Path, entry_id: str) -> History:
    """All versions of an entry. Raises GitError when neither HEAD's history nor the working tree knows the id."""
    blobs = Blobs(repository)
    folder = repository.prefix + FOLDERS["/" not in entry_id]
    steps: list[Step] = []
    if not repository.is_empty:
        head = repository.resolve("HEAD")
        path = find_path(repository, blobs, head, entry_id, folder) or f"{folder}/{entry_id}.yaml"
        steps = lineage(repository, blobs, head, entry_id, path)
    committed = blobs.document(steps[0].blob) if steps and steps[0].blob is not None else None
    steps = [replace(step, parents=_readable(blobs, steps, step.parents)) for step in steps]
    versions = [v for step in steps if (v := _version(repository, blobs, step)) is not None]
    current, uncommitted = _working_tree(repository, root, entry_id, steps[0].path if steps else None, committed)
    if uncommitted is not None:
        versions.insert(0, uncommitted)
    if not versions:
        raise GitError(f"no commit and no file holds '{entry_id}'; 'agentcompile show {entry_id}' suggests near names")
    newest = current if current is not None else committed
    return History(entry_id, tuple(versions), _blame(versions, newest))


def _readable(blobs: Blobs, steps: list[Step], states: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The states with each unreadable one replaced by what came before it: a repair is compared with the last sense."""
    origins = {(step.path, step.blob): step.parents for step in steps}
    found: dict[tuple[str, str], None] = {}
    pending, seen = list(states), set[tuple[str, str]]()
    while pending:
        state = pending.pop(0)
        if blobs.document(state[1]).value is None and origins.get(state) and state not in seen:
            pending = [*origins[state], *pending]
        else:
            found[state] = None
        seen.add(state)
    return tuple(found)


def _version(repository: Repository, blobs: Blobs, step: Step) -> Version | None:
    """What a step did; None for a merge that only joined what its parents had."""
    commit = repository.commit(step.commit)
    if step.blob is None:
        return Version(commit, step.path, "removed", None, None)
    document = blobs.document(step.blob)
    if step.is_boundary:
        return _stated(commit, step.path, "cut", document)
    if not step.parents:
        return _stated(commit, step.path, "added", document)
    if document.value is None:
        return Version(commit, step.path, "unreadable", None, None)
    before = [(path, blobs.document(blob)) for path, blob in step.parents]
    edits = _edits([d for _, d in before], document)
    moved = all(path != step.path for path, _ in before)
    if not edits and not moved and len(before) > 1:
        return None
    version = _stated(commit, step.path, "moved" if moved else "changed", document)
    classes = _classes(before[0], (step.path, document)) if len(before) == 1 else ()
    return Version(commit, step.path, version.event, version.version, version.status, edits, classes)


def _edits(before: list[Document], after: Document) -> tuple[FieldEdit, ...]:
    """Fields that differ from every state before: a merge has changed only what neither side had."""
    found: dict[str, FieldEdit] = {}
    for index, document in enumerate(before):
        fields = {p: FieldEdit(p, a, b) for p, a, b in differing_fields(document.value or {}, after.value or {})}
        found = fields if index == 0 else {path: edit for path, edit in found.items() if path in fields}
    return tuple(found.values())


def _stated(commit: Commit | None, path: str, event: str, document: Document) -> Version:
    value = document.value or {}
    version, status = value.get("version"), value.get("status")
    return Version(
        commit,
        path,
        event if document.value is not None else "unreadable",
        version if isinstance(version, int) else None,
        status if isinstance(status, str) else None,
    )


def _classes(before: tuple[str, Document], after: tuple[str, Document]) -> tuple[ChangeClass, ...]:
    """The semantic classes, where both states are valid entries under today's model."""
    models = []
    for path, document in (before, after):
        # A path may begin with the folder the library is in, or was in before it moved.
        kind = next((k for depth in (3, 2) if (k := kind_of("/".join(path.split("/")[-depth:])))), None)
        models.append(None if kind is None else parse_entry(path, kind, document).model)
    old, new = models
    if old is None or new is None or type(old) is not type(new):
        return ()
    change = diff_entry(old, new)
    return change.classes if change is not None else ()


def _working_tree(
    repository: Repository, root: Path, entry_id: str, path: str | None, committed: Document | None
) -> tuple[Document | None, Version | None]:
    """The entry's document on disk and, where it differs from the last commit, that as a version."""
    folder = FOLDERS["/" not in entry_id]
    names = [path[len(repository.prefix) :]] if path is not None and path.startswith(repository.prefix) else []
    names += [f"{folder}/{entry_id}.yaml", *(p for p in entry_paths(root) if p.startswith(f"{folder}/"))]
    for name in dict.fromkeys(names):
        data, problems = read_bytes(root / name)
        if problems or entry_id.encode() not in data:
            continue
        document = load_bytes(data)
        stated = (document.value or {}).get("id")
        if stated == entry_id or (document.value is None and name == names[0]):
            return document, _uncommitted(name, document, committed, repository.prefix + name != path)
    return None, Version(None, path, "removed", None, None) if committed is not None and path is not None else None


def _uncommitted(name: str, document: Document, committed: Document | None, moved: bool) -> Version | None:
    if committed is None:
        return _stated(None, name, "added", document)
    if document.text == committed.text and not moved:
        return None
    version = _stated(None, name, "moved" if moved else "changed", document)
    edits = _edits([committed], document) if version.event != "unreadable" else ()
    return Version(
        None, name, version.event, version.version, version.status, edits, _classes((name, committed), (name, document))
    )


def _blame(versions: list[Version], newest: Document | None) -> tuple[Blame, ...]:
    if newest is None or newest.value is None:
        return ()
    found = []
    for path in _leaves(newest.value):
        edited = (
            i
            for i, version in enumerate(versions)
            if version.event == "added" or any(_touches(edit.path, path) for edit in version.edits)
        )
        found.append(Blame(path, next(edited, None)))
    return tuple(found)


def _touches(edited: str, path: str) -> bool:
    return edited == path or path.startswith(f"{edited}.") or edited.startswith(f"{path}.")


def _leaves(value: dict[str, Any]) -> list[str]:
    """Top-level fields, and those of ``when`` one by one: what a reader asks about."""
    found = []
    for name, below in value.items():
        if isinstance(below, dict) and below and name in ("when", "dims", "dtypes", "numerics"):
            found += [f"{name}.{key}" for key in below]
        else:
            found.append(name)
    return found
