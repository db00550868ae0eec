"""Everything the site is made from, read once: the library, the store, the history, the benchmark records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kb.dtype import Target
from kb.library import Entry as LibraryEntry
from kb.library import Library, load_library
from kb.principle import Principle
from kb.site.history import Change, read_changes
from kb.site.records import Record, read_records
from kb.staleness import stale_reasons
from kb.store import Entry, KernelStore


@dataclass(frozen=True)
class Content:
    """What is shown. ``kernels`` are whole entries, fastest first a contract and target; ``damaged`` one line each."""

    library: Library
    kernels: tuple[Entry, ...] = ()
    damaged: tuple[str, ...] = ()
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    commit: str = ""

    @cached_property
    def principles(self) -> tuple[Principle, ...]:
        """All principles by id."""
        return tuple(self.library.principles[key] for key in sorted(self.library.principles))

    @cached_property
    def files(self) -> Mapping[str, LibraryEntry]:
        """Files of readable entries by id."""
        return {entry.model.id: entry for entry in self.library.entries if entry.model is not None}

    @cached_property
    def families(self) -> Mapping[str, tuple[Principle, ...]]:
        """Principles by family."""
        names = sorted({p.family for p in self.principles})
        return {name: tuple(p for p in self.principles if p.family == name) for name in names}

    @cached_property
    def inverse(self) -> Mapping[str, tuple[tuple[str, Principle], ...]]:
        """For a principle's id, who names it and how."""
        found: dict[str, list[tuple[str, Principle]]] = {}
        for principle in self.principles:
            for related in principle.related:
                found.setdefault(related.id, []).append((related.relation, principle))
            for older in principle.supersedes:
                found.setdefault(older, []).append(("supersedes", principle))
        return {key: tuple(value) for key, value in found.items()}

    @cached_property
    def users(self) -> Mapping[str, tuple[Entry, ...]]:
        """For a principle's id, the kernels whose prompt carried it."""
        found: dict[str, list[Entry]] = {}
        for kernel in self.kernels:
            for block in kernel.manifest.origin.principles:
                found.setdefault(block.id, []).append(kernel)
        return {key: tuple(value) for key, value in found.items()}

    @cached_property
    def by_digest(self) -> Mapping[str, Entry]:
        """Kernels by full digest."""
        return {kernel.digest: kernel for kernel in self.kernels}

    def speaking_to(self, contract: str) -> tuple[Principle, ...]:
        """Principles that name a contract among their patterns."""
        return tuple(p for p in self.principles if contract in p.patterns)

    def kernels_of(self, contract: str, target: Target | None = None) -> tuple[Entry, ...]:
        """Kernels of a contract, fastest first a target."""
        wanted = (k for k in self.kernels if k.manifest.contract == contract)
        return tuple(k for k in wanted if target is None or k.manifest.target is target)

    def stale(self, kernel: Entry) -> tuple[str, ...]:
        """Why a kernel no longer stands for the library; empty when it does."""
        return stale_reasons(kernel.manifest, self.library)


def read_content(root: Path) -> Content:
    """Everything below a library's root. Unreadable entries and damaged kernels are listed, never shown."""
    kernels, damaged = KernelStore(root / "kernels").entries()
    commit, changes = read_changes(root)
    shown = tuple(line.replace(f"{root}/", "") for line in damaged)
    return Content(load_library(root), tuple(kernels), shown, changes, read_records(root), commit)
