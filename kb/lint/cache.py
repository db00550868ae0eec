"""What an earlier run found, by content: one file in the user's cache folder for each library.

A report depends on a file's bytes and on this program alone, so both make the key. The file is written whole and
renamed into place: of two runs at once the later one wins and neither sees half a file. It carries a checksum, and
whatever is damaged, foreign or of another version is simply not there. Losing it costs a second, never a finding.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
Json = Any


@dataclass(slots=True)
class Cache:
    """Reports by path, each with the key of the bytes it is about; and the findings of a whole run by its key.

    ``files`` and ``run`` hold JSON data. Nothing is written before ``save``.
    """

    place: Path
    program: str
    files: dict[str, tuple[str, Json]] = field(default_factory=dict)
    run: tuple[str, Json] = ("", None)

    def report(self, path: str, key: str) -> Json | None:
        """The report kept for these bytes, or None."""
        kept = self.files.get(path)
        return kept[1] if kept is not None and kept[0] == key else None

    def save(self, files: Mapping[str, tuple[str, Json]], run: tuple[str, Json]) -> None:
        """Keep these and nothing else. A full disk or a read-only folder loses the cache, not the run."""
        if self.run[0] == run[0] and self.files.keys() == files.keys():
            return
        body = json.dumps({"files": files, "run": run}, separators=(",", ":"), ensure_ascii=False).encode()
        staged = self.place.with_name(f".{self.place.name}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(_checksum(self.program, body) + b"\n" + body)
            staged.replace(self.place)
        except OSError:
            with contextlib.suppress(OSError):
                staged.unlink()


def open_cache(library: Path) -> Cache:
    """The cache of one library; empty where there is none or it cannot be trusted."""
    name = hashlib.sha256(os.fsencode(library.resolve())).hexdigest()[:20]
    place, program = cache_folder() / "check" / f"{name}.json", _program()
    try:
        checksum, body = place.read_bytes().split(b"\n", 1)
        if checksum != _checksum(program, body):
            return Cache(place, program)
        data = json.loads(body)
        files = {str(path): (str(kept[0]), kept[1]) for path, kept in data["files"].items()}
        return Cache(place, program, files, (str(data["run"][0]), data["run"][1]))
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return Cache(place, program)


def cache_folder() -> Path:
    """``agentcompile`` in the user's cache folder: AGENTCOMPILE_CACHE, XDG_CACHE_HOME or the platform's own."""
    if named := os.environ.get("AGENTCOMPILE_CACHE"):
        return Path(named)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "agentcompile"
    try:
        home = Path.home()
    except RuntimeError:
        return Path(os.devnull) / "agentcompile"  # no home: every write fails, and that is fine
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "agentcompile"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "agentcompile" / "Cache"
    return home / ".cache" / "agentcompile"


def content_key(data: bytes) -> str:
    """Key of a file's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def run_key(parts: Mapping[str, str]) -> str:
    """Key of a whole run: of every file's key and of what else it depends on."""
    text = json.dumps(sorted(parts.items()), separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _checksum(program: str, body: bytes) -> bytes:
    return hashlib.blake2b(program.encode() + body, digest_size=16).hexdigest().encode()


def _program() -> str:
    """Changes whenever this program may find something else: its files, its parser and its validator."""
    seen = [f"{FORMAT} {sys.version}"]
    package = Path(__file__).resolve().parent.parent
    folders = [package / name for name in (".", "diff", "lint", "lint/rules", "yaml")]
    files = [entry for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".py")]
    for entry in sorted(files, key=lambda e: e.path):
        stat = entry.stat()
        seen.append(f"{entry.path} {stat.st_size} {stat.st_mtime_ns}")
    for name in ("pydantic", "pydantic_core", "ruamel.yaml", "_ruamel_yaml"):
        found = importlib.util.find_spec(name)
        origin = found.origin if found is not None else None
        seen.append(f"{name} {origin} {Path(origin).stat().st_mtime_ns if origin else 0}")
    return hashlib.blake2b("\n".join(seen).encode(), digest_size=8).hexdigest()
