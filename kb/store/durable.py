"""Writes that are whole or absent, whatever kills the process or fills the disk in between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

INCOMING = ".incoming"


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the store's lock. It is released by the kernel when the process dies, so it cannot be left behind."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def publish_folder(root: Path, target: Path, files: Mapping[str, bytes]) -> bool:
    """Make ``target`` appear with all ``files`` or not at all. Returns False when it was there already.

    The folder is written and synced under ``root/.incoming`` and renamed into place; a rename onto a folder that
    holds files fails, so of two writers of one digest exactly one publishes.
    Raises OSError (disk full, no permission); nothing half-written is left in sight.
    """
    incoming = root / INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    staged = incoming / f"{target.name[:16]}-{os.getpid()}-{secrets.token_hex(4)}"
    staged.mkdir()
    try:
        for name, content in files.items():
            _write_synced(staged / name, content)
        _sync_folder(staged)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staged.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        _sync_folder(target.parent)
        return True
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def replace_file(path: Path, content: bytes) -> None:
    """Replace one file's content in a single step. Raises OSError; the old content then stands."""
    staged = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _write_synced(staged, content)
        staged.replace(path)
        _sync_folder(path.parent)
    finally:
        staged.unlink(missing_ok=True)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
