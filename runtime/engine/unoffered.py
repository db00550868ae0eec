"""Admitted kernels that a choice was made without, because no verdict lets them run at a site's dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.contract import Contract
from kb.coverage import compile_dims, standing
from kb.dtype import Target
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice


@dataclass(frozen=True, slots=True)
class Unoffered:
    """A kernel of ``operation`` that was not offered at ``dims``; ``why``: never judged there, or what it failed."""

    bucket: int
    operation: str
    digest: str
    dims: Mapping[str, int]
    why: str


def unoffered(
    choices: Sequence[BucketChoice], contracts: Mapping[str, Contract], store: KernelStore | None, target: Target
) -> list[Unoffered]:
    """Every such kernel at every site of ``choices``, fastest first. What a site is offered: see ``CandidateList``."""
    found = []
    for choice in choices:
        for site in (s.site for s in choice.sites):
            contract = contracts.get(site.operation)
            if contract is None or store is None:
                continue
            dims = compile_dims(contract, dict(site.dims))
            for entry in store.admitted(contract.id, target):
                stands = standing(entry.manifest, contract, dims, site.storage)
                if stands.accepted:
                    continue
                gate = stands.verdict.failed_gate if stands.verdict else None
                why = f"failed {gate.gate.value} at these dims" if gate else "not judged at these dims"
                found.append(Unoffered(choice.bucket, site.operation, entry.digest, dims, why))
    return found
