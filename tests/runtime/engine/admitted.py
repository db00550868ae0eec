"""Kernels of the calibration corpus, put into a store as if they had been judged at given dims."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from kb.candidate import Candidate
from kb.candidate_files import read_candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import load_library
from kb.manifest import Environment, GateName, GateResult, Manifest, Origin, Outcome, ShapeError, Verdict
from kb.store import KernelStore

ROOT = Path(__file__).resolve().parents[3]
_WHEN = datetime(2026, 11, 30, 12, tzinfo=UTC)


@lru_cache(maxsize=1)
def contracts() -> Mapping[str, Contract]:
    """The shipped contracts."""
    return load_library(ROOT).contracts


def right_kernel(operation: str, number: int = 0) -> Candidate:
    """The plain CPU kernel of the calibration corpus; ``number`` gives it another digest."""
    kernel = read_candidate(ROOT / "tests/calibration/right" / operation, operation, Target.CPU)
    return kernel.model_copy(update={"source": f"{kernel.source}\n// {number}\n"}) if number else kernel


def manifest(candidate: Candidate, dims: Mapping[str, int], storage: DType, *, accepted: bool = True) -> Manifest:
    """A manifest whose one verdict judged ``candidate`` at ``dims``."""
    error = ShapeError(
        dims=dict(dims), dtype=storage, distribution="normal", tensor="out", error=0.0, baseline_error=0.0, allowed=1.0
    )
    verdict = Verdict(
        candidate=candidate.digest,
        contract=candidate.contract,
        contract_version=1,
        target=candidate.target,
        accepted=accepted,
        gates=(GateResult(gate=GateName.NUMERICS, outcome=Outcome.PASSED if accepted else Outcome.FAILED),),
        errors=(error,),
        environment=Environment(hardware="a test machine", arch="x86_64", compiler="g++"),
        seed=0,
        judged_at=_WHEN,
    )
    return Manifest(
        digest=candidate.digest,
        contract=candidate.contract,
        contract_version=1,
        contract_digest="0" * 64,
        target=candidate.target,
        plan=candidate.plan,
        notes=candidate.notes,
        status="admitted",
        origin=Origin(authorship="hand-written"),
        verdicts=(verdict,),
        admitted_at=_WHEN,
    )


def admit(store: KernelStore, candidate: Candidate, dims: Mapping[str, int], storage: DType) -> Candidate:
    """Put ``candidate`` into ``store`` as judged at ``dims``."""
    store.admit(candidate, manifest(candidate, dims, storage))
    return candidate


def few_contracts(root: Path, *names: str) -> Path:
    """A library of only these contracts, which loads in no time; its root."""
    (root / "contracts").mkdir(parents=True)
    for name in names:
        shutil.copy(ROOT / "contracts" / f"{name}.yaml", root / "contracts")
    return root
