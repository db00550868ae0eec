"""One git repository, read only and hardened.

Whatever a user types as a revision is resolved to a full hash first, by ``rev-parse --verify --end-of-options``, and
only hashes and literal paths after ``--`` reach any other git command: a branch called ``--output=x`` is a name that
does not resolve, never an option. Nothing here writes to the repository, its index included.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

# A missing git executable must be an error of ours with a remedy, not one at import.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

import git
from git.exc import GitCommandError, GitCommandNotFound, InvalidGitRepositoryError, NoSuchPathError
from gitdb.exc import BadName, BadObject

from kb.git.errors import GitError

_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# Set in a hook, they would silently point every command at the hook's repository.
_LOCATION_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a report says about a commit. ``date`` is the author's, with its offset."""

    hash: str
    author: str
    date: datetime
    subject: str

    @property
    def short(self) -> str:
        """The first ten digits of the hash."""
        return self.hash[:10]


@dataclass(frozen=True, slots=True)
class Change:
    """One file changed by a commit. A side that does not exist has the hash None."""

    path: str
    before: str | None
    after: str | None


class Repository:
    """The repository that holds a folder. Use it as a context manager: git processes stay open until it closes."""

    def __init__(self, repo: git.Repo, folder: Path) -> None:
        self._repo = repo
        self._blobs: dict[tuple[str, str], str | None] = {}
        self.root = Path(str(repo.working_tree_dir)).resolve()
        # Where the folder is inside the repository: "" or "some/folder/".
        relative = folder.relative_to(self.root).as_posix()
        self.prefix = "" if relative == "." else f"{relative}/"
        values = {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "GIT_TERMINAL_PROMPT": "0"}
        if any(name in os.environ for name in _LOCATION_VARIABLES):
            places = (str(repo.git_dir), str(self.root), str(repo.common_dir))
            values |= dict(zip(_LOCATION_VARIABLES, places, strict=True))
        repo.git.update_environment(**values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the git processes that belong to this object."""
        self._repo.close()

    @property
    def is_ignored(self) -> bool:
        """True for a folder that the repository's ignore rules leave out and that holds no tracked file."""
        if not self.prefix:
            return False
        # The one command that refuses literal pathspecs; "./" keeps a leading ":" from meaning anything.
        magic = {"GIT_LITERAL_PATHSPECS": "0"}
        ignored = self._bytes("check-ignore", "--", f"./{self.prefix}", allowed=(0, 1), environment=magic)
        return bool(ignored) and not self._bytes("ls-files", "-z", "--", self.prefix)

    @property
    def is_empty(self) -> bool:
        """True before the first commit."""
        return self._verify("HEAD") is None

    @property
    def shallow_boundary(self) -> frozenset[str]:
        """Hashes of the commits whose parents this clone does not have; empty in a full clone."""
        try:
            text = (Path(str(self._repo.common_dir)) / "shallow").read_text(encoding="ascii")
        except FileNotFoundError:
            return frozenset()
        return frozenset(text.split())

    def resolve(self, revision: str) -> str:
        """Full hash of the commit that ``revision`` names. Raises GitError when there is none."""
        found = self._verify(revision)
        if found is not None:
            return found
        if self.is_empty:
            raise GitError(f"'{revision}' cannot be resolved: {self.root} has no commit yet")
        raise GitError(f"'{revision}' is no commit in {self.root}{self._shallow_hint()}")

    def merge_base(self, left: str, right: str) -> str:
        """Best common ancestor of two full hashes. Raises GitError when there is none."""
        found = self._text("merge-base", *_hashes(left, right), allowed=(0, 1)).strip()
        if not found:
            raise GitError(f"{left[:10]} and {right[:10]} have no common ancestor{self._shallow_hint()}")
        return found

    def commit(self, commit_hash: str) -> Commit:
        """Author, date and subject of a commit given by full hash."""
        found = self._object(commit_hash)
        author, subject = _one_line(str(found.author.name)), _one_line(str(found.summary))
        return Commit(found.hexsha, author, found.authored_datetime, subject)

    def parents(self, commit_hash: str) -> tuple[str, ...]:
        """Parents this clone has; none at the boundary of a shallow clone."""
        if commit_hash in self.shallow_boundary:
            return ()
        return tuple(p.hexsha for p in self._object(commit_hash).parents)

    def files(self, commit_hash: str, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """(path, blob hash) of every regular file under ``folders``, paths relative to the repository, sorted."""
        output = self._bytes("ls-tree", "-r", "-z", "--full-tree", *_hashes(commit_hash), "--", *folders)
        for record in output.split(b"\0"):
            if record:
                head, _, path = record.partition(b"\t")
                mode, kind, blob = head.decode("ascii").split(" ")
                if kind == "blob" and mode != "120000":
                    yield os.fsdecode(path), blob

    def read(self, blob_hash: str, limit: int) -> bytes | None:
        """A blob's bytes; None where it is larger than ``limit``, so that nothing huge is ever held."""
        binary = bytes.fromhex(*_hashes(blob_hash))
        try:
            if self._repo.odb.info(binary).size > limit:
                return None
            data: bytes = self._repo.odb.stream(binary).read()
        except (BadObject, BadName, ValueError) as error:
            raise GitError(f"blob {blob_hash[:10]} cannot be read from {self.root}: {error}") from None
        return data

    def blob_at(self, commit_hash: str, path: str) -> str | None:
        """Hash of the regular file at ``path``; None where the commit has no such file."""
        if (commit_hash, path) not in self._blobs:
            found = next((blob for name, blob in self.files(commit_hash, (path,)) if name == path), None)
            self._blobs[commit_hash, path] = found
        return self._blobs[commit_hash, path]

    def walk(self, commit_hash: str, path: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Commits that touched ``path``, newest first, each with its parents among them (simplified history)."""
        output = self._text("rev-list", "--topo-order", "--parents", *_hashes(commit_hash), "--", path)
        lines = [line.split(" ") for line in output.splitlines()]
        return tuple((line[0], tuple(line[1:])) for line in lines)

    def ancestors(self, commit_hash: str) -> tuple[str, ...]:
        """The commit and all that came before it, children before parents."""
        return tuple(self._text("rev-list", "--topo-order", *_hashes(commit_hash), "--").splitlines())

    def changes(self, parent: str, commit_hash: str) -> tuple[Change, ...]:
        """Regular files that differ between two commits, renames as a removal and an addition."""
        output = self._bytes("diff-tree", "-r", "-z", "--raw", "--no-renames", *_hashes(parent, commit_hash), "--")
        fields = output.split(b"\0")
        found = []
        for head, path in zip(fields[0::2], fields[1::2], strict=False):
            mode_before, mode_after, before, after, _ = head.decode("ascii").lstrip(":").split(" ")
            sides = [None if mode[:3] != "100" else blob for mode, blob in ((mode_before, before), (mode_after, after))]
            found.append(Change(os.fsdecode(path), *sides))
        return tuple(found)

    def user_name(self) -> str | None:
        """git's ``user.name``, or None where it is not set."""
        return self._text("config", "--get", "user.name", allowed=(0, 1)).strip() or None

    def _object(self, commit_hash: str) -> git.Commit:
        try:
            return self._repo.commit(*_hashes(commit_hash))
        except (BadObject, BadName, ValueError) as error:
            raise GitError(f"commit {commit_hash[:10]} cannot be read from {self.root}: {error}") from None

    def _verify(self, revision: str) -> str | None:
        if not revision or any(ord(c) < 32 or ord(c) == 127 for c in revision):
            return None
        arguments = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        found = self._text("rev-parse", *arguments, allowed=(0, 1, 128)).strip()
        return found if _HASH.fullmatch(found) else None

    def _shallow_hint(self) -> str:
        return "; this is a shallow clone, 'git fetch --unshallow' brings the rest" if self.shallow_boundary else ""

    def _text(self, *command: str, allowed: tuple[int, ...] = (0,)) -> str:
        return self._bytes(*command, allowed=allowed).decode("utf-8", "surrogateescape")

    def _bytes(
        self, *command: str, allowed: tuple[int, ...] = (0,), environment: Mapping[str, str] | None = None
    ) -> bytes:
        line = [str(self._repo.git.GIT_PYTHON_GIT_EXECUTABLE), *command]
        try:
            answer = self._repo.git.execute(
                line,
                env=environment,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        except GitCommandNotFound:
            raise GitError("git is not installed, or not on PATH") from None
        except GitCommandError as error:
            raise GitError(f"git {command[0]} failed in {self.root}: {_one_line(str(error))}") from None
        assert isinstance(answer, tuple)
        status, stdout, stderr = answer
        if "dubious ownership" in str(stderr):
            raise GitError(
                f"{self.root} belongs to another user and git refuses to read it; if you trust it: "
                f"git config --global --add safe.directory {self.root}"
            )
        if status not in allowed:
            raise GitError(f"git {command[0]} failed in {self.root}: {_one_line(str(stderr)) or f'status {status}'}")
        assert isinstance(stdout, bytes)
        return stdout


def open_repository(folder: Path) -> Repository:
    """The repository whose working tree holds ``folder``: a clone, a worktree or a submodule.

    Raises GitError when there is none, or when it is bare.
    """
    folder = folder.resolve()
    try:
        repo = git.Repo(folder, search_parent_directories=True)
    except NoSuchPathError:
        raise GitError(f"{folder} does not exist") from None
    except InvalidGitRepositoryError:
        raise GitError(
            f"{folder} is not in a git repository; run this in a clone, or name one with --library"
        ) from None
    except GitCommandNotFound:
        raise GitError("git is not installed, or not on PATH") from None
    if repo.working_tree_dir is None or not folder.is_relative_to(Path(str(repo.working_tree_dir)).resolve()):
        repo.close()
        raise GitError(f"{folder} is in a repository without a working tree; run this in a clone of it")
    repository = Repository(repo, folder)
    if repository.is_ignored:
        # An installed library in a virtual environment inside somebody's checkout: that history is not its own.
        repository.close()
        raise GitError(f"{folder} is ignored by the repository at {repository.root}; name a library with --library")
    return repository


def _hashes(*values: str) -> tuple[str, ...]:
    for value in values:
        if not _HASH.fullmatch(value):
            raise GitError(f"'{value}' is not a full hash")
    return values


def _one_line(text: str) -> str:
    """``text`` as it may be printed: author and subject are whatever a commit's writer chose, escapes included."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
