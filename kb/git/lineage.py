"""Where an entry's file was, commit by commit: followed by id, so that renames and moves do not end the trail.

Git follows a path; a path stops at a rename, and may hold another entry later. So each file's own ``id`` decides: where
the file at a path is new, or held another id before, the commit's other files are searched for the id.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from kb.git.repository import Repository
from kb.yaml import Document, load_bytes
from kb.yaml.source import MAX_BYTES

_ID_LINE = re.compile(r"^id:[ ]*[\"']?([a-z0-9_/-]+)[\"']?[ ]*(?:#.*)?$", re.MULTILINE)
# Share of lines in common from which a file that went and one that came in a commit are one, its id edited.
_SAME_TEXT = 0.6


@dataclass(frozen=True, slots=True)
class Step:
    """The file at one commit, and at the states it came from. ``blob`` is None where the commit removed it.

    ``is_boundary``: a shallow clone is cut here, so what the step changed is not known.
    """

    commit: str
    path: str
    blob: str | None
    parents: tuple[tuple[str, str], ...] = ()
    is_boundary: bool = False


@dataclass(slots=True)
class Blobs:
    """Files by blob hash, each read and parsed once."""

    repository: Repository
    _bytes: dict[str, bytes] = field(default_factory=dict)
    _documents: dict[str, Document] = field(default_factory=dict)

    def data(self, blob: str) -> bytes:
        """The file's bytes; one too long for an entry gives as many as make the loader refuse it."""
        if blob not in self._bytes:
            data = self.repository.read(blob, MAX_BYTES)
            self._bytes[blob] = b"#" * (MAX_BYTES + 1) if data is None else data
        return self._bytes[blob]

    def document(self, blob: str) -> Document:
        """The parsed file."""
        if blob not in self._documents:
            self._documents[blob] = load_bytes(self.data(blob))
        return self._documents[blob]

    def holds(self, blob: str, entry_id: str) -> bool:
        """True for the file of ``entry_id``. A search of the bytes comes first: parsing every file would be slow."""
        return entry_id.encode() in self.data(blob) and self.id_of(blob) == entry_id

    def id_of(self, blob: str) -> str | None:
        """The id that the file states, also where the file is not valid YAML."""
        document = self.document(blob)
        if document.value is not None:
            stated = document.value.get("id")
            return stated if isinstance(stated, str) else None
        match = _ID_LINE.search(document.text)
        return match[1] if match else None


def find_path(repository: Repository, blobs: Blobs, commit_hash: str, entry_id: str, folder: str) -> str | None:
    """Path of the file below ``folder`` that holds ``entry_id`` at a commit; the expected path is tried first."""
    expected = f"{folder}/{entry_id}.yaml"
    files = [(p, b) for p, b in repository.files(commit_hash, (folder,)) if p.endswith(".yaml")]
    for path, blob in sorted(files, key=lambda item: item[0] != expected):
        if blobs.holds(blob, entry_id):
            return path
    return None


def lineage(repository: Repository, blobs: Blobs, commit_hash: str, entry_id: str, path: str) -> list[Step]:
    """Every commit that touched the entry, newest first, back to where it was added or the clone is cut."""
    steps: list[Step] = []
    seen: set[tuple[str, str]] = set()
    pending = [(commit_hash, entry_id, path)]
    while pending:
        start, id_, at = pending.pop(0)
        graph = repository.walk(start, at)
        wanted = {graph[0][0]} if graph else set()
        for commit, parents in graph:
            if commit not in wanted or (commit, at) in seen:
                continue
            seen.add((commit, at))
            step, origins = _step(repository, blobs, commit, parents, id_, at)
            steps.append(step)
            for parent, parent_id, parent_path in origins:
                if parent_path == at and parent in parents:
                    wanted.add(parent)
                else:
                    pending.append((parent, parent_id, parent_path))
    if len({step.path for step in steps}) > 1:
        # Stretches under different paths were collected one after the other, but may be parallel branches.
        order = {commit: i for i, commit in enumerate(repository.ancestors(commit_hash))}
        steps.sort(key=lambda step: order[step.commit])
    return steps


_Origin = tuple[str, str, str]


def _step(
    repository: Repository, blobs: Blobs, commit: str, parents: tuple[str, ...], id_: str, path: str
) -> tuple[Step, list[_Origin]]:
    """The step at ``commit`` and the (commit, id, path) that the entry came from."""
    blob = repository.blob_at(commit, path)
    if commit in repository.shallow_boundary:
        return Step(commit, path, blob, is_boundary=True), []
    if blob is None:
        origins = [(parent, id_, path) for parent in parents]
    else:
        origins = [(parent, id_, path) for parent in parents if _holds(repository, blobs, parent, path, id_)]
        for parent in repository.parents(commit):
            if not _holds(repository, blobs, parent, path, id_):
                origins += _came_from(repository, blobs, parent, commit, id_, path)
        if not origins and parents:
            # The id was edited in place: the file is the same, whatever it called itself.
            older = [blobs.id_of(b) for p in parents if (b := repository.blob_at(p, path)) is not None]
            origins = [(parent, (older[0] if older else None) or id_, path) for parent in parents]
    states = []
    for parent, _, parent_path in origins:
        before = repository.blob_at(parent, parent_path)
        if before is not None:
            states.append((parent_path, before))
    return Step(commit, path, blob, tuple(states)), origins


def _holds(repository: Repository, blobs: Blobs, commit: str, path: str, id_: str) -> bool:
    blob = repository.blob_at(commit, path)
    return blob is not None and blobs.id_of(blob) in (id_, None)


def _came_from(repository: Repository, blobs: Blobs, parent: str, commit: str, id_: str, path: str) -> list[_Origin]:
    """The file that held the entry before ``commit`` moved it to ``path``: by id, else by what it says."""
    changed = [
        c for c in repository.changes(parent, commit) if c.before and c.path != path and c.path.endswith(".yaml")
    ]
    for change in sorted(changed, key=lambda c: c.after is not None):
        if change.before and blobs.holds(change.before, id_):
            return [(parent, id_, change.path)]
    blob = repository.blob_at(commit, path)
    removed = [c for c in changed if c.after is None]
    if blob is None or repository.blob_at(parent, path) is not None or len(removed) > 200:
        return []
    lines = blobs.document(blob).text.splitlines()
    best, best_score = None, 0.0
    for change in removed:
        assert change.before is not None
        matcher = difflib.SequenceMatcher(None, blobs.document(change.before).text.splitlines(), lines, autojunk=False)
        if (score := matcher.ratio()) > best_score:
            best, best_score = change, score
    if best is None or best.before is None or best_score < _SAME_TEXT:
        return []
    return [(parent, blobs.id_of(best.before) or id_, best.path)]
