"""What a kernel's verdicts say of one set of compile-time dims: accepted there, rejected there, or nothing yet.

A kernel is compiled anew for every shape, and what was shown at one says little about another. So a kernel may run only
where a verdict that accepts it saw these dims and this storage type, and a later verdict that found it wrong there
takes that away again. A verdict that only found it too slow takes nothing away: speed is about one machine, and
whoever runs the kernel measures it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kb.contract import Contract, DimKind
from kb.dtype import DType
from kb.manifest import GateName, Manifest, Verdict


@dataclass(frozen=True, slots=True)
class Standing:
    """``accepted``: the kernel may run there. ``verdict``: the one that decides; None when none speaks of the dims."""

    accepted: bool
    verdict: Verdict | None


def compile_dims(contract: Contract, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims that are compiled in, in the contract's order. Raises KeyError for one that is missing."""
    return {name: dims[name] for name in contract.dims_of(DimKind.STATIC, DimKind.FLAG)}


def standing(manifest: Manifest, contract: Contract, dims: Mapping[str, int], storage: DType) -> Standing:
    """What the manifest says of ``dims`` (run-time ones are ignored) and ``storage``; the newest verdict decides."""
    here = {name: dims.get(name) for name in contract.dims_of(DimKind.STATIC, DimKind.FLAG)}
    slow: Verdict | None = None
    for verdict in reversed(manifest.verdicts):
        if verdict.accepted and _saw(verdict, here, storage):
            return Standing(True, verdict)
        if verdict.at == here and verdict.failed_gate is not None:
            if verdict.failed_gate.gate is not GateName.PERFORMANCE:
                return Standing(False, verdict)
            slow = slow or verdict
    return Standing(False, slow)


def _saw(verdict: Verdict, here: Mapping[str, int | None], storage: DType) -> bool:
    seen = [(t.dims, t.dtype) for t in verdict.timings] + [(e.dims, e.dtype) for e in verdict.errors]
    return any(dtype is storage and all(dims.get(n) == v for n, v in here.items()) for dims, dtype in seen)
