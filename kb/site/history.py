"""The changes of all entries from git, in one walk: asking for each entry by itself would read every commit again.

An entry is followed by the id in its file, so a rename does not end its history. What differs from ``kb.git.history``
is reach, not meaning: the working tree's uncommitted state is no part of a published page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kb.diff import ChangeClass, diff_entry
from kb.diff.fields import differing_fields
from kb.git.errors import GitError
from kb.git.lineage import Blobs
from kb.git.repository import Commit, Repository, open_repository
from kb.library import kind_of, parse_entry
from kb.place import FOLDERS
from kb.yaml import Document


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit did to one entry.

    ``event`` is ``added``, ``changed``, ``moved``, ``removed``, ``mended`` (the file could not be read before, so what
    changed is not known) or ``cut`` (a shallow clone begins here).
    ``fields`` are the top-level keys that differ; ``classes`` their semantic weight, where both states are entries.
    """

    commit: Commit
    event: str
    version: int | None
    fields: tuple[str, ...] = ()
    classes: tuple[ChangeClass, ...] = ()


def read_changes(root: Path) -> tuple[str, Mapping[str, tuple[Change, ...]]]:
    """HEAD's hash, and by entry id its changes, newest first. Empty outside a repository or before the first commit."""
    try:
        with open_repository(root) as repository:
            if repository.is_empty:
                return "", {}
            return repository.resolve("HEAD"), _walk(repository)
    except GitError:
        return "", {}


def _walk(repository: Repository) -> Mapping[str, tuple[Change, ...]]:
    blobs = Blobs(repository)
    found: dict[str, list[Change]] = {}
    for commit in repository.ancestors(repository.resolve("HEAD")):
        for entry_id, change in _of_commit(repository, blobs, commit):
            found.setdefault(entry_id, []).append(change)
    return {key: tuple(value) for key, value in found.items()}


def _of_commit(repository: Repository, blobs: Blobs, commit: str) -> Iterator[tuple[str, Change]]:
    parents = repository.parents(commit)
    if len(parents) > 1:
        # A merge joins what its parents' own commits already tell.
        return
    before, after = _sides(repository, blobs, commit, parents)
    if not before and not after:
        return
    stated = repository.commit(commit)
    for entry_id in sorted({*before, *after}):
        old, new = before.get(entry_id), after.get(entry_id)
        if new is None:
            yield entry_id, Change(stated, "removed", None)
        elif old is None:
            event = "cut" if commit in repository.shallow_boundary else "added"
            yield entry_id, Change(stated, event, _version(blobs, new[1]))
        else:
            change = _compare(blobs, stated, old, new)
            yield entry_id, change


_State = tuple[str, str]  # path below the library's root, blob


def _sides(
    repository: Repository, blobs: Blobs, commit: str, parents: tuple[str, ...]
) -> tuple[dict[str, _State], dict[str, _State]]:
    """By entry id, where it was before and is after, for the files that the commit touched."""
    before: dict[str, _State] = {}
    after: dict[str, _State] = {}
    prefix = repository.prefix
    if parents:
        for change in repository.changes(parents[0], commit):
            path = change.path.removeprefix(prefix)
            if change.path.startswith(prefix) and kind_of(path):
                for side, blob in ((before, change.before), (after, change.after)):
                    if blob is not None and set(blob) != {"0"} and (entry_id := blobs.id_of(blob)):
                        side[entry_id] = (path, blob)
    else:
        for path, blob in repository.files(commit, tuple(prefix + folder for folder in FOLDERS)):
            if kind_of(path.removeprefix(prefix)) and (entry_id := blobs.id_of(blob)):
                after[entry_id] = (path.removeprefix(prefix), blob)
    return before, after


def _compare(blobs: Blobs, commit: Commit, old: _State, new: _State) -> Change:
    documents = blobs.document(old[1]), blobs.document(new[1])
    before, after = (document.value or {} for document in documents)
    if not before:
        return Change(commit, "mended", _version(blobs, new[1]))
    fields = dict.fromkeys(path.split(".")[0] for path, _, _ in differing_fields(before, after))
    event = "changed" if fields or old[0] == new[0] else "moved"
    return Change(commit, event, _version(blobs, new[1]), tuple(fields), _classes((old[0], new[0]), documents))


def _classes(paths: tuple[str, str], documents: tuple[Document, Document]) -> tuple[ChangeClass, ...]:
    models = []
    for path, document in zip(paths, documents, strict=True):
        kind = kind_of(path)
        models.append(None if kind is None else parse_entry(path, kind, document).model)
    old, new = models
    if old is None or new is None or type(old) is not type(new):
        return ()
    change = diff_entry(old, new)
    return change.classes if change is not None else ()


def _version(blobs: Blobs, blob: str) -> int | None:
    version = (blobs.document(blob).value or {}).get("version")
    return version if isinstance(version, int) else None
