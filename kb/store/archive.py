"""Carry kernels between stores as one deterministic tar file."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kb.store.durable import publish_folder
from kb.store.entry import MANIFEST, TRANSCRIPT, DamagedEntryError, Entry, read_entry
from kb.store.store import KernelStore, StoreError

MAX_FILE_BYTES = 64 * 2**20
MAX_MEMBERS = 100_000
_ALLOWED = {"kernel.cu", "kernel.cpp", MANIFEST, TRANSCRIPT}


def export(entries: Sequence[Entry], path: Path) -> None:
    """Write ``entries`` to ``path`` (tar, no timestamps or owners: the same entries give the same bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted(entries, key=lambda e: e.folder.parts[-3:]):
            for file in sorted(p for p in entry.folder.iterdir() if p.name in _ALLOWED):
                content = file.read_bytes()
                info = tarfile.TarInfo("/".join((*entry.folder.parts[-3:], file.name)))
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    staged = path.with_name(f".{path.name}.part")
    try:
        staged.write_bytes(buffer.getvalue())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def import_(store: KernelStore, path: Path) -> tuple[list[Path], list[Path]]:
    """Add the archive's kernels; returns those added and those that were there already.

    Every entry is checked as if read from a store before any is published. Raises StoreError when the file is no
    such archive or one entry is damaged; the store is then unchanged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        staged = _unpack(path, Path(scratch))
        contents = [(f.relative_to(scratch), {p.name: p.read_bytes() for p in f.iterdir()}) for f in staged]
    added: list[Path] = []
    known: list[Path] = []
    for relative, files in contents:
        target = store.root / relative
        created = not target.exists() and publish_folder(store.root, target, files)
        (added if created else known).append(target)
    return added, known


def _unpack(path: Path, scratch: Path) -> list[Path]:
    try:
        with tarfile.open(path, mode="r:") as archive:
            for count, member in enumerate(archive):
                _check_member(member, count, path)
                file = archive.extractfile(member)
                assert file is not None  # a regular file
                target = scratch / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())
    except (OSError, tarfile.TarError) as error:
        raise StoreError(f"{path}: not a readable kernel archive ({error})") from None
    folders = sorted({p.parent for p in scratch.glob("*/*/*/*")})
    for folder in folders:
        try:
            read_entry(folder)
        except DamagedEntryError as error:
            raise StoreError(f"{path}: {str(error).replace(str(scratch) + '/', '')}; nothing was imported") from None
    return folders


def _check_member(member: tarfile.TarInfo, count: int, path: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if not member.isfile() or len(parts) != 4 or parts[3] not in _ALLOWED or any(p in ("..", "/", ".") for p in parts):
        raise StoreError(f"{path}: unexpected member '{member.name}'; nothing was imported")
    if member.size > MAX_FILE_BYTES or count >= MAX_MEMBERS:
        raise StoreError(f"{path}: too large at '{member.name}'; nothing was imported")
