"""A candidate that must compile for an older architecture as well; no GPU is needed to say so."""

from __future__ import annotations

import pytest

from kb.candidate import Candidate, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import GateName, Verdict
from runtime.compile_cache import CompileCache
from validator.judge import Options, judge

DIMS = {"num_tokens": 2, "hidden_size": 64, "has_residual": 0}
SOURCE = """extern "C" __global__ void rms(const T* __restrict__ x, T* __restrict__ residual,
    const T* __restrict__ weight, T* __restrict__ out, float eps, void* __restrict__ workspace) {
BODY
  out[threadIdx.x] = x[threadIdx.x];
}
"""
MEET = '  asm volatile("barrier.cluster.arrive.aligned;");'
GUARDED = f"#if __CUDA_ARCH__ >= 900\n{MEET}\n#endif"


def judged(contracts: dict[str, Contract], images: CompileCache, body: str, *also: str, shared: int = 0) -> Verdict:
    pytest.importorskip("cuda.core")
    plan = LaunchPlan.model_validate({"launches": [{"entry": "rms", "block": [64, 1, 1], "shared_bytes": shared}]})
    source = SOURCE.replace("BODY", body)
    candidate = Candidate(contract="residual_rmsnorm", target=Target.CUDA, source=source, plan=plan)
    options = Options(
        gates=(GateName.STATIC, GateName.COMPILE), dims=DIMS, storages=(DType.FLOAT32,), quick=True, also=also
    )
    return judge(candidate, contracts["residual_rmsnorm"], options=options, cache=images)


def failure(verdict: Verdict) -> tuple[str, str] | None:
    failed = verdict.failed_gate
    return (failed.gate.value, failed.findings[0].code) if failed else None


def test_what_only_a_newer_one_has_is_found_where_the_older_one_is_asked_for(
    contracts: dict[str, Contract], images: CompileCache
) -> None:
    assert failure(judged(contracts, images, MEET)) is None
    verdict = judged(contracts, images, MEET, "sm_80")
    assert failure(verdict) == ("compile", "not-portable")
    assert verdict.gates[1].findings[0].message.startswith("sm_80: ")


def test_what_is_guarded_passes_and_the_record_says_for_which(
    contracts: dict[str, Contract], images: CompileCache
) -> None:
    verdict = judged(contracts, images, GUARDED, "sm_80")
    assert failure(verdict) is None
    assert verdict.gates[1].details["also"] == ["sm_80"]


def test_a_plan_that_asks_for_more_than_the_older_one_has_is_found(
    contracts: dict[str, Contract], images: CompileCache
) -> None:
    verdict = judged(contracts, images, "", "sm_80", shared=200_000)
    assert failure(verdict) == ("compile", "not-portable")
    assert "bytes of shared memory" in verdict.gates[1].findings[0].message
