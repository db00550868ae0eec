"""The library as it stood at a revision, read from git's objects: nothing is checked out."""

from __future__ import annotations

from pathlib import Path

from kb.git.errors import GitError
from kb.git.repository import Repository
from kb.git.revisions import WORKING_TREE, Endpoints
from kb.library import Entry, Library, assemble, entry_paths, is_library, kind_of, load_entry, parse_entry
from kb.yaml import load_bytes
from kb.yaml.source import MAX_BYTES, read_bytes

FOLDERS = ("principles", "contracts")

# What is unchanged between two states is parsed once: (path, bytes) -> entry.
_Parsed = dict[tuple[str, bytes], Entry]


def load_pair(repository: Repository, root: Path, ends: Endpoints) -> tuple[Library, Library]:
    """Both states of the library at ``root``. Raises GitError when neither holds one.

    The working tree is read from disk, so files that git does not know yet are part of it.
    """
    parsed: _Parsed = {}
    old = _load_commit(repository, root, ends.base, parsed)
    new = _load_files(root, parsed) if ends.head is None else _load_commit(repository, root, ends.head, parsed)
    if not old.entries and not new.entries:
        names = " and ".join(f"{name}/" for name in FOLDERS)
        where = f" under {repository.prefix}" if repository.prefix else ""
        raise GitError(f"neither {ends.base[:10]} nor the {_name(ends)} has entries in {names}{where}")
    return old, new


def load_revision(repository: Repository, root: Path, commit_hash: str) -> Library:
    """The library at one commit, given by full hash; empty where the commit has none."""
    return _load_commit(repository, root, commit_hash, {})


def _load_commit(repository: Repository, root: Path, commit_hash: str, parsed: _Parsed) -> Library:
    folders = tuple(f"{repository.prefix}{name}" for name in FOLDERS)
    entries = []
    for path, blob in repository.files(commit_hash, folders):
        below = path[len(repository.prefix) :]
        if kind_of(below) is not None:
            data = repository.read(blob, MAX_BYTES)
            # The loader refuses what is too long by its length alone, so what it would hold is beside the point.
            entries.append(_parse(below, b"#" * (MAX_BYTES + 1) if data is None else data, parsed))
    return assemble(root, entries)


def _load_files(root: Path, parsed: _Parsed) -> Library:
    if not is_library(root):
        return assemble(root, ())
    entries = []
    for path in entry_paths(root):
        data, problems = read_bytes(root / path)
        entries.append(load_entry(root, path) if problems else _parse(path, data, parsed))
    return assemble(root, entries)


def _parse(path: str, data: bytes, parsed: _Parsed) -> Entry:
    known = parsed.get((path, data))
    if known is None:
        kind = kind_of(path)
        assert kind is not None  # callers have looked
        known = parsed[path, data] = parse_entry(path, kind, load_bytes(data))
    return known


def _name(ends: Endpoints) -> str:
    return WORKING_TREE if ends.head is None else ends.head[:10]
