"""Compiled images on disk, found by the digest of everything that went into them.

An entry is two files: the image (``<digest>.cubin`` or ``.so``) and ``<digest>.json`` beside it, which holds the
image's checksum and what the compiler said. Each is written to a temporary name and renamed, the image first, so a
reader sees a whole entry or none; an image that does not match its checksum counts as absent and is compiled again.
Two processes that compile the same source both succeed and the later one wins. Nothing here is ever trusted over
the compiler: losing the whole folder costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kb.dtype import Target
from runtime.errors import CompilerMessage, Level
from runtime.image import EntryResources, Image

FORMAT = 1
DEFAULT_LIMIT_BYTES = 2 << 30
_SUFFIX = {Target.CUDA: ".cubin", Target.CPU: ".so"}


@dataclass(frozen=True, slots=True)
class CompileKey:
    """Everything that decides an image, ``text`` being the full source with its prelude."""

    target: Target
    text: str
    options: tuple[str, ...]
    arch: str
    compiler: str

    @property
    def digest(self) -> str:
        """SHA-256 over all parts and the cache's format."""
        parts = [str(FORMAT), self.target.value, self.arch, self.compiler, *self.options, self.text]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class CompileCache:
    """Images under ``root``, at most about ``limit_bytes`` of them: the least recently used go first.

    ``root`` defaults to ``agentcompile/images`` in the user's cache folder. A folder that cannot be written to, or a
    full disk, costs the caching and nothing else: the image then lives in a temporary file until the process ends.
    """

    def __init__(self, root: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.root = root if root is not None else default_root()
        self.limit_bytes = limit_bytes
        self._homeless: tempfile.TemporaryDirectory[str] | None = None

    def find(self, key: CompileKey) -> Image | None:
        """The image for ``key``; None when there is none or it is damaged."""
        digest = key.digest
        image_path, record_path = self._paths(self.root, key.target, digest)
        try:
            record = json.loads(record_path.read_text(encoding="utf-8"))
            data = image_path.read_bytes()
            if record["format"] != FORMAT or record["sha256"] != hashlib.sha256(data).hexdigest():
                return None
            image = _image(key, digest, image_path, record, cached=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(record_path)
        return image

    def put(
        self,
        key: CompileKey,
        data: bytes,
        resources: Mapping[str, EntryResources],
        messages: Sequence[CompilerMessage],
        seconds: float,
    ) -> Image:
        """Keep ``data`` and return its Image; on a disk that refuses it, from a temporary file."""
        digest = key.digest
        record = {
            "format": FORMAT,
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "arch": key.arch,
            "compiler": key.compiler,
            "options": list(key.options),
            "seconds": seconds,
            "resources": {name: asdict(r) for name, r in resources.items()},
            "messages": [asdict(m) for m in messages],
        }
        try:
            path = self._write(self.root, key.target, digest, data, record)
            self._evict(keep=digest)
        except OSError:
            if self._homeless is None:
                self._homeless = tempfile.TemporaryDirectory(prefix="agentcompile-")
            path = self._write(Path(self._homeless.name), key.target, digest, data, record)
        return _image(key, digest, path, record, cached=False)

    def size_bytes(self) -> int:
        """Bytes of all files under ``root``."""
        return sum(size for _, size, _ in self._entries())

    @staticmethod
    def _paths(root: Path, target: Target, digest: str) -> tuple[Path, Path]:
        folder = root / digest[:2]
        return folder / f"{digest}{_SUFFIX[target]}", folder / f"{digest}.json"

    def _write(self, root: Path, target: Target, digest: str, data: bytes, record: Mapping[str, Any]) -> Path:
        image_path, record_path = self._paths(root, target, digest)
        image_path.parent.mkdir(parents=True, exist_ok=True)
        _replace(image_path, data)
        _replace(record_path, json.dumps(record, sort_keys=True).encode())
        return image_path

    def _entries(self) -> list[tuple[float, int, list[Path]]]:
        """(last use, bytes, files with the record first) of every entry, what a killed writer left included."""
        found: dict[str, list[tuple[float, int, Path]]] = {}
        for path in self.root.glob("??/*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.setdefault(path.stem, []).append((stat.st_mtime, stat.st_size, path))
        return [
            (
                max(used for used, _, _ in files),
                sum(size for _, size, _ in files),
                sorted((path for _, _, path in files), key=lambda p: p.suffix != ".json"),
            )
            for files in found.values()
        ]

    def _evict(self, keep: str) -> None:
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, files in entries:
            if total <= self.limit_bytes:
                return
            if files[0].stem == keep:
                continue
            # The record goes first, so that a reader in between finds no entry rather than half of one.
            for path in files:
                path.unlink(missing_ok=True)
            total -= size


def default_root() -> Path:
    """``agentcompile/images`` under XDG_CACHE_HOME or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentcompile" / "images"


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:16]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _image(key: CompileKey, digest: str, path: Path, record: Mapping[str, Any], *, cached: bool) -> Image:
    messages = tuple(CompilerMessage(**{**m, "level": Level(m["level"])}) for m in record["messages"])
    return Image(
        target=key.target,
        arch=key.arch,
        digest=digest,
        path=path,
        compiler=key.compiler,
        options=key.options,
        resources={name: EntryResources(**r) for name, r in record["resources"].items()},
        messages=messages,
        seconds=0.0 if cached else record["seconds"],
        cached=cached,
    )
