"""The parts of a review, each a pure function of the two states of the library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kb.diagnostic import Diagnostic, Severity
from kb.diff import LibraryDiff
from kb.dtype import Target
from kb.library import EntryKind, Library
from kb.manifest import Manifest
from kb.staleness import stale_reasons


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What a review needs of a rendered prompt. ``blocks`` maps the ids of the principles in it to their digests.

    ``error`` says why there is no prompt; the rest is then empty.
    """

    digest: str = ""
    tokens: int = 0
    blocks: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


# (library, contract id, target) -> facts. Rendering lives above this package, so the command passes it in.
Renderer = Callable[[Library, str, Target], PromptFacts]


@dataclass(frozen=True, slots=True)
class PromptChange:
    """A prompt that is not what it was. Tokens are None on the side where there is no prompt."""

    contract: str
    target: Target
    tokens_before: int | None
    tokens_after: int | None
    entered: tuple[str, ...]
    left: tuple[str, ...]
    reworded: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class StaleKernel:
    """An admitted kernel that no longer stands for what the library says, because of this change."""

    digest: str
    contract: str
    target: Target
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Review:
    """The whole report. ``known_findings`` counts what was there before and still is.

    ``prompts`` is None where this installation cannot render prompts.
    """

    diff: LibraryDiff
    findings: tuple[Diagnostic, ...]
    known_findings: int
    prompts: tuple[PromptChange, ...] | None
    stale: tuple[StaleKernel, ...]
    damaged: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """True when the change itself brings an error."""
        return any(f.severity is Severity.ERROR for f in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {**asdict(self), "diff": self.diff.as_json(), "has_errors": self.has_errors}


def new_findings(base: Iterable[Diagnostic], head: Iterable[Diagnostic]) -> tuple[tuple[Diagnostic, ...], int]:
    """Findings of ``head`` that ``base`` did not have, and how many it had already.

    A finding is the same when file, code and message are: lines move with every edit.
    """
    known = Counter((d.path, d.code, d.message) for d in base)
    fresh, old = [], 0
    for finding in sorted(head):
        key = (finding.path, finding.code, finding.message)
        if known[key] > 0:
            known[key] -= 1
            old += 1
        else:
            fresh.append(finding)
    return tuple(fresh), old


def changed_prompts(old: Library, new: Library, diff: LibraryDiff, render: Renderer) -> tuple[PromptChange, ...]:
    """Every contract and target whose prompt differs; only those that a changed entry can reach are rendered."""
    found = []
    for contract, target in _reached(old, new, diff):
        before, after = (
            render(library, contract, target)
            if contract in library.contracts
            else PromptFacts(error="no such contract")
            for library in (old, new)
        )
        if before == after:
            continue
        both = before.blocks.keys() & after.blocks.keys()
        found.append(
            PromptChange(
                contract=contract,
                target=target,
                tokens_before=None if before.error else before.tokens,
                tokens_after=None if after.error else after.tokens,
                entered=tuple(sorted(after.blocks.keys() - both)),
                left=tuple(sorted(before.blocks.keys() - both)),
                reworded=tuple(sorted(b for b in both if before.blocks[b] != after.blocks[b])),
                note=after.error,
            )
        )
    return tuple(found)


def made_stale(old: Library, new: Library, manifests: Sequence[Manifest]) -> tuple[StaleKernel, ...]:
    """Admitted kernels with a reason to be stale that they did not have before the change."""
    found = []
    for manifest in manifests:
        if manifest.status != "admitted":
            continue
        before = set(stale_reasons(manifest, old))
        reasons = tuple(r for r in stale_reasons(manifest, new) if r not in before)
        if reasons:
            found.append(StaleKernel(manifest.digest, manifest.contract, manifest.target, reasons))
    return tuple(sorted(found, key=lambda k: (k.contract, k.target, k.digest)))


def _reached(old: Library, new: Library, diff: LibraryDiff) -> list[tuple[str, Target]]:
    contracts: set[str] = set()
    for entry in diff.entries:
        ids = {entry.id, entry.previous_id or entry.id}
        if entry.kind is EntryKind.CONTRACT:
            contracts |= ids
        for library in (old, new):
            contracts |= {c for i in ids if i in library.principles for c in library.principles[i].patterns}
    return [
        (contract, target)
        for contract in sorted(contracts)
        for target in Target
        if any(contract in side.contracts and target in side.contracts[contract].baselines for side in (old, new))
    ]
