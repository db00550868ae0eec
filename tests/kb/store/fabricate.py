"""Kernels made up for the store's tests."""

from __future__ import annotations

from datetime import UTC, datetime

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.dtype import DType, Target
from kb.manifest import (
    Comparison,
    Environment,
    GateName,
    GateResult,
    Manifest,
    Origin,
    Outcome,
    ShapeTiming,
    Verdict,
)


def make_kernel(
    number: int = 0, *, ratio: float = 1.2, accepted: bool = True, second: int = 0
) -> tuple[Candidate, Manifest]:
    """A candidate and a manifest that belongs to it; ``number`` makes it distinct."""
    candidate = Candidate(
        contract="rope",
        target=Target.CPU,
        source=f"// kernel {number}\n" + "x" * 2000,
        plan=LaunchPlan(launches=(Launch(entry="rope"),)),
    )
    timing = ShapeTiming(
        dims={"num_tokens": 1},
        dtype=DType.BFLOAT16,
        candidate_us=10.0,
        candidate_us_interval=(9.9, 10.1),
        baseline="torch_eager",
        baseline_us=10.0 * ratio,
        baseline_us_interval=(9.9 * ratio, 10.1 * ratio),
        ratio=ratio,
        ratio_interval=(ratio - 0.01, ratio + 0.01),
        comparison=Comparison.FASTER,
        floor_us=5.0,
        bandwidth_gbps=20.0,
        bandwidth_share=0.5,
        samples=30,
    )
    outcome = Outcome.PASSED if accepted else Outcome.FAILED
    verdict = Verdict(
        candidate=candidate.digest,
        contract="rope",
        contract_version=1,
        target=Target.CPU,
        accepted=accepted,
        gates=(GateResult(gate=GateName.NUMERICS, outcome=outcome),),
        timings=(timing,),
        environment=Environment(hardware="a test machine", arch="x86_64", compiler="g++"),
        seed=number,
        judged_at=datetime(2026, 11, 30, 12, 0, second, tzinfo=UTC),
    )
    manifest = Manifest(
        digest=candidate.digest,
        contract="rope",
        contract_version=1,
        contract_digest="0" * 64,
        target=Target.CPU,
        plan=candidate.plan,
        status="admitted",
        origin=Origin(authorship="hand-written"),
        verdicts=(verdict,),
        admitted_at=datetime(2026, 11, 30, 12, tzinfo=UTC),
    )
    return candidate, manifest
