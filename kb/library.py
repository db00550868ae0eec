"""Where principles, contracts and kernels live, and how they are loaded.

Loading never stops at a bad file: every file that can be read becomes a typed model, every other one a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kb.contract import Contract
from kb.diagnostic import Diagnostic
from kb.digest import meaning_digest
from kb.place import EntryKind, entry_paths, is_library, kind_of, library_root
from kb.principle import Principle
from kb.yaml import Document, Problem, load_bytes, load_file
from kb.yaml.locate import locate


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its path below the library's root, its text with positions, and its model unless it is unreadable."""

    path: str
    kind: EntryKind
    document: Document
    model: Principle | Contract | None
    findings: tuple[Diagnostic, ...] = ()

    @property
    def id(self) -> str | None:
        """The entry's id; None where the file could not be read."""
        return self.model.id if self.model is not None else None

    @property
    def digest(self) -> str | None:
        """Digest of what the entry means (kb.digest), stable across formatting."""
        return meaning_digest(self.model) if self.model is not None else None


@dataclass(frozen=True, slots=True)
class Library:
    """Everything that could be read under ``root``; what could not is in ``findings``.

    ``entries`` holds every file in path order, unreadable ones included. Of two files with one id the one whose
    path is the id is in the mappings.
    """

    root: Path
    principles: Mapping[str, Principle]
    contracts: Mapping[str, Contract]
    findings: tuple[Diagnostic, ...] = ()
    entries: tuple[Entry, ...] = ()

    def entry(self, entry_id: str) -> Entry | None:
        """The file that holds ``entry_id``, or None."""
        return next((e for e in self.entries if e.model is not None and e.model.id == entry_id), None)


def load_library(root: Path) -> Library:
    """Load all principles and contracts under ``root``. A bad file is a finding and stops nothing."""
    return assemble(root, (load_entry(root, path) for path in entry_paths(root)))


def load_library_from(files: Mapping[str, bytes], root: Path) -> Library:
    """A library from bytes in memory (a git revision), keyed by the path below the root; other paths are ignored."""
    entries = []
    for path in sorted(files):
        kind = kind_of(path)
        if kind is not None:
            entries.append(parse_entry(path, kind, load_bytes(files[path])))
    return assemble(root, entries)


def assemble(root: Path, entries: Iterable[Entry]) -> Library:
    """A library of loaded entries."""
    principles: dict[str, Principle] = {}
    contracts: dict[str, Contract] = {}
    kept = tuple(entries)
    for entry in sorted(kept, key=lambda e: e.path.split("/", 1)[-1] != f"{e.id}.yaml"):
        if isinstance(entry.model, Principle):
            principles.setdefault(entry.model.id, entry.model)
        elif isinstance(entry.model, Contract):
            contracts.setdefault(entry.model.id, entry.model)
    findings = tuple(sorted(f for e in kept for f in e.findings))
    return Library(root, principles, contracts, findings, kept)


def load_entry(root: Path, path: str) -> Entry:
    """Read the entry at ``path`` below ``root``."""
    kind = kind_of(path)
    assert kind is not None
    return parse_entry(path, kind, load_file(root / path))


def parse_entry(path: str, kind: EntryKind, document: Document) -> Entry:
    """Validate a document against its model."""
    problems = list(document.problems)
    model: Principle | Contract | None = None
    if document.value is not None:
        schema: type[Principle] | type[Contract] = Principle if kind is EntryKind.PRINCIPLE else Contract
        try:
            model = schema.model_validate(document.value)
        except ValidationError as error:
            problems.extend(locate(document, error, schema))
    return Entry(path, kind, document, model, tuple(sorted(as_diagnostic(path, document, p) for p in problems)))


def as_diagnostic(path: str, document: Document, problem: Problem) -> Diagnostic:
    """A problem at an offset, as a finding at a line and column."""
    line, column = document.lines.place(problem.offset) if problem.offset is not None else (0, 0)
    return Diagnostic(path, line, column, problem.code, problem.message, fix=problem.fix)


__all__ = [
    "Entry",
    "EntryKind",
    "Library",
    "as_diagnostic",
    "assemble",
    "entry_paths",
    "is_library",
    "kind_of",
    "library_root",
    "load_entry",
    "load_library",
    "load_library_from",
    "parse_entry",
]
