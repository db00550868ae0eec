"""The store as a whole: admit, find, revoke, verify, clean up.

Readers take no lock: an entry appears by one rename and its manifest changes by one rename. Writers that change a
manifest hold the store's lock, so that two of them cannot lose each other's verdicts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.candidate import Candidate
from kb.dtype import Target
from kb.manifest import Manifest, Verdict
from kb.store.durable import INCOMING, exclusive, publish_folder, replace_file
from kb.store.entry import (
    MANIFEST,
    TRANSCRIPT,
    DamagedEntryError,
    Entry,
    dump_manifest,
    parse_manifest,
    read_entry,
    source_name,
)

STALE_AFTER_SECONDS = 3600.0


class StoreError(Exception):
    """A request the store cannot serve; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What ``admit`` did. ``created`` is False when the kernel was there and only gained verdicts."""

    folder: Path
    created: bool


class KernelStore:
    """A folder of kernels, ``<root>/<contract>/<target>/<digest>/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def admit(self, candidate: Candidate, manifest: Manifest, transcript: Sequence[dict[str, Any]] = ()) -> Admission:
        """Store an accepted candidate.

        Raises StoreError when the manifest does not belong to the candidate or its last verdict does not accept it,
        OSError when the disk refuses; either way the store is as it was.
        """
        _check_admissible(candidate, manifest)
        lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in transcript).encode()
        digest = hashlib.sha256(lines).hexdigest() if transcript else None
        manifest = manifest.model_copy(update={"transcript_digest": digest})
        files = {source_name(candidate.target): candidate.source.encode(), MANIFEST: dump_manifest(manifest)}
        if transcript:
            files[TRANSCRIPT] = lines
        folder = self.folder(candidate)
        with exclusive(self.root):
            if folder.exists():
                try:
                    self._merge(read_entry(folder), manifest.verdicts)
                    return Admission(folder, created=False)
                except DamagedEntryError:
                    # The damaged copy is kept aside for a look and replaced by the whole one in our hands.
                    aside = self.root / INCOMING / f"damaged-{folder.name[:16]}-{time.time_ns()}"
                    aside.parent.mkdir(parents=True, exist_ok=True)
                    folder.rename(aside)
            publish_folder(self.root, folder, files)
        return Admission(folder, created=True)

    def folder(self, candidate: Candidate) -> Path:
        """Where the candidate is or would be."""
        return self.root / candidate.contract / candidate.target.value / candidate.digest

    def folders(self) -> Iterator[Path]:
        """Every entry's folder in a stable order, damaged ones included."""
        yield from sorted(p for p in self.root.glob("*/*/*") if p.is_dir() and not p.parts[-3].startswith("."))

    def entries(self, contract: str | None = None, target: Target | None = None) -> tuple[list[Entry], list[str]]:
        """Whole entries, fastest first, and one line for each damaged one (which is skipped)."""
        found: list[Entry] = []
        damaged: list[str] = []
        for folder in self.folders():
            if contract is not None and folder.parts[-3] != contract:
                continue
            if target is not None and folder.parts[-2] != target.value:
                continue
            try:
                found.append(read_entry(folder))
            except DamagedEntryError as error:
                damaged.append(str(error))
        found.sort(key=lambda e: (e.manifest.contract, e.manifest.target, -e.ratio, e.digest))
        return found, damaged

    def admitted(self, contract: str, target: Target) -> list[Entry]:
        """Kernels that may run: admitted, whole, not revoked; fastest first."""
        return [e for e in self.entries(contract, target)[0] if e.manifest.status == "admitted"]

    def get(self, digest: str) -> Entry:
        """The entry whose digest starts with ``digest``. Raises StoreError (none, several, damaged)."""
        if len(digest) < 4 or not all(c in "0123456789abcdef" for c in digest):
            raise StoreError(f"'{digest}': give at least four hexadecimal digits of the kernel's digest")
        matches = [f for f in self.folders() if f.name.startswith(digest)]
        if not matches:
            raise StoreError(f"no kernel '{digest}' in {self.root}; 'agentcompile kernels ls' lists them")
        if len(matches) > 1:
            names = ", ".join(m.name[: len(digest) + 6] for m in matches[:4])
            raise StoreError(f"'{digest}' is ambiguous: {names}")
        try:
            return read_entry(matches[0])
        except DamagedEntryError as error:
            raise StoreError(f"kernel {matches[0].name[:12]} is damaged and not loaded: {error}") from None

    def revoke(self, digest: str, reason: str) -> Entry:
        """Mark a kernel as not to be run. Raises StoreError; needs a reason."""
        if not reason.strip():
            raise StoreError("a revocation needs a reason")
        return self._rewrite(digest, {"status": "revoked", "reason": reason.strip()})

    def reinstate(self, digest: str, verdict: Verdict) -> Entry:
        """Admit a revoked kernel again on a new verdict that accepts it. Raises StoreError."""
        if not verdict.accepted or verdict.at is not None:
            raise StoreError("a kernel is reinstated only by a whole verdict that accepts it")
        entry = self.get(digest)
        update = {"status": "admitted", "reason": "", "verdicts": (*entry.manifest.verdicts, verdict)}
        return self._rewrite(digest, update)

    def record(self, digest: str, verdict: Verdict) -> Entry:
        """Add a verdict to an admitted kernel, whatever it says; kb.coverage says what it then means.

        Raises StoreError when the verdict is about another kernel, or the kernel is not admitted.
        """
        with exclusive(self.root):
            entry = self.get(digest)
            m = entry.manifest
            if (verdict.candidate, verdict.contract, verdict.target) != (m.digest, m.contract, m.target):
                raise StoreError("the verdict judged another kernel")
            if m.status != "admitted":
                raise StoreError(f"kernel {entry.digest[:12]} is revoked ({m.reason}); only admitted ones are extended")
            self._merge(entry, (verdict,))
            return read_entry(entry.folder)

    def verify(self) -> list[str]:
        """One line for every damaged entry; an empty list means the store is whole."""
        return self.entries()[1]

    def collect(self, *, now: float | None = None, max_age: float = STALE_AFTER_SECONDS) -> list[Path]:
        """Remove what interrupted writers left behind and is older than ``max_age`` seconds; returns what went."""
        now = time.time() if now is None else now
        gone = []
        with exclusive(self.root):
            leftovers = [*(self.root / INCOMING).glob("*"), *self.root.glob(f"*/*/*/.{MANIFEST}-*")]
            for path in sorted(leftovers):
                if now - path.stat().st_mtime >= max_age:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    gone.append(path)
        return gone

    def remove(self, digest: str) -> Path:
        """Delete a revoked kernel. Raises StoreError for an admitted one: revoke it first."""
        entry = self.get(digest)
        if entry.manifest.status != "revoked":
            raise StoreError(f"kernel {entry.digest[:12]} is admitted; revoke it before it is removed")
        with exclusive(self.root):
            # A rename takes it out of sight in one step; readers never see half a kernel while files go.
            aside = self.root / INCOMING / f"removed-{entry.digest[:16]}-{time.time_ns()}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            entry.folder.rename(aside)
            shutil.rmtree(aside)
        return entry.folder

    def _rewrite(self, digest: str, update: dict[str, Any]) -> Entry:
        with exclusive(self.root):
            entry = self.get(digest)
            manifest = Manifest.model_validate(entry.manifest.model_copy(update=update).model_dump(), strict=False)
            replace_file(entry.folder / MANIFEST, dump_manifest(manifest))
            return read_entry(entry.folder)

    def _merge(self, entry: Entry, verdicts: Sequence[Verdict]) -> None:
        known = {(v.judged_at, v.seed) for v in entry.manifest.verdicts}
        fresh = tuple(v for v in verdicts if (v.judged_at, v.seed) not in known)
        if fresh:
            manifest = entry.manifest.model_copy(update={"verdicts": entry.manifest.verdicts + fresh})
            content = dump_manifest(manifest)
            parse_manifest(content, str(entry.folder / MANIFEST))
            replace_file(entry.folder / MANIFEST, content)


def _check_admissible(candidate: Candidate, manifest: Manifest) -> None:
    if manifest.digest != candidate.digest or manifest.plan != candidate.plan:
        raise StoreError("the manifest belongs to another candidate (digest or plan differ)")
    if (manifest.contract, manifest.target) != (candidate.contract, candidate.target):
        raise StoreError("the manifest names another contract or target than the candidate")
    verdict = manifest.verdicts[-1]
    if verdict.candidate != candidate.digest:
        raise StoreError("the verdict judged another candidate")
    if not verdict.accepted:
        gate = verdict.failed_gate
        raise StoreError(f"the candidate was not accepted{f': gate {gate.gate} failed' if gate else ''}")
    if verdict.at is not None:
        raise StoreError("the verdict is about some dims alone; a kernel is admitted by a whole one")
