"""One folder of the store: its files, and the checks that decide whether it may be loaded.

``manifest.yaml`` ends with a comment that holds the SHA-256 of every byte above it, so an edited or torn manifest
is told from a whole one; the source and launch plan must hash to the folder's name, and the transcript to the
digest in the manifest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kb.candidate import Candidate
from kb.dtype import Target
from kb.manifest import Manifest
from kb.yaml.write import dump_yaml

MANIFEST = "manifest.yaml"
TRANSCRIPT = "transcript.jsonl"
_SEAL = b"# sha256 "
_SOURCES = {Target.CUDA: "kernel.cu", Target.CPU: "kernel.cpp"}


class DamagedEntryError(Exception):
    """A store entry that must not be loaded; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Entry:
    """An admitted (or revoked) kernel that passed every integrity check when it was read."""

    folder: Path
    manifest: Manifest
    source: str

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @cached_property
    def candidate(self) -> Candidate:
        """The kernel in the form the loaders take."""
        m = self.manifest
        return Candidate(contract=m.contract, target=m.target, source=self.source, plan=m.plan, notes=m.notes)

    @property
    def ratio(self) -> float:
        """Geometric mean of T_baseline / T_candidate over the shapes of its acceptance; 0 where none was timed."""
        ratios = [t.ratio for t in self.manifest.acceptance.timings]
        if not ratios or min(ratios) <= 0:
            return 0.0
        product = 1.0
        for ratio in ratios:
            product *= ratio
        return float(product ** (1 / len(ratios)))

    def transcript(self) -> list[dict[str, Any]]:
        """Every prompt, reply and diagnostic, in order; empty for a kernel without one."""
        path = self.folder / TRANSCRIPT
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def source_name(target: Target) -> str:
    """``kernel.cu`` or ``kernel.cpp``."""
    return _SOURCES[target]


def dump_manifest(manifest: Manifest) -> bytes:
    """YAML text with its seal."""
    body = dump_yaml(manifest.model_dump(mode="json", exclude_defaults=True) | {"format": manifest.format}).encode()
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b"\n"


def parse_manifest(content: bytes, place: str) -> Manifest:
    """Raises DamagedEntryError when the seal is missing or wrong, or the content is no manifest."""
    body, mark, seal = content.rpartition(_SEAL)
    if not mark or hashlib.sha256(body).hexdigest().encode() != seal.strip():
        raise DamagedEntryError(f"{place}: seal missing or broken; the file is torn or was edited by hand")
    try:
        data = YAML(typ="safe", pure=True).load(body.decode("utf-8"))
        return Manifest.model_validate(data)
    except (YAMLError, UnicodeDecodeError, ValidationError) as error:
        raise DamagedEntryError(f"{place}: {' '.join(str(error).split())[:200]}") from None


def read_entry(folder: Path) -> Entry:
    """Read and check one folder. Raises DamagedEntryError; nothing of a damaged entry is returned."""
    manifest = parse_manifest(_read(folder / MANIFEST), str(folder / MANIFEST))
    path = folder / source_name(manifest.target)
    try:
        source = _read(path).decode("utf-8")
        entry = Entry(folder, manifest, source)
        digest = entry.candidate.digest
    except (UnicodeDecodeError, ValidationError) as error:
        raise DamagedEntryError(f"{path}: {' '.join(str(error).split())[:200]}") from None
    if digest != folder.name or digest != manifest.digest:
        raise DamagedEntryError(f"{path}: source and plan hash to {digest[:12]}, not to {folder.name[:12]}")
    if folder.parent.name != manifest.target or folder.parent.parent.name != manifest.contract:
        raise DamagedEntryError(f"{folder}: lies under another contract or target than its manifest names")
    if manifest.transcript_digest is not None:
        path = folder / TRANSCRIPT
        if hashlib.sha256(_read(path)).hexdigest() != manifest.transcript_digest:
            raise DamagedEntryError(f"{path}: does not hash to the digest in the manifest")
    return entry


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedEntryError(f"{path}: {error.strerror}") from None
