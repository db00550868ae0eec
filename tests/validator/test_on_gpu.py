"""The worker and the sanitizer with a real device."""

from __future__ import annotations

import pytest

from kb.candidate import Candidate, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import GateName, Outcome, Verdict
from runtime.compile_cache import CompileCache
from validator.judge import Options, judge
from validator.sanitizers import cuda

pytestmark = pytest.mark.gpu

HEAD = """
extern "C" __global__ void rms(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                               T* __restrict__ out, float eps, void* __restrict__ workspace) {
"""
COPY = "for (int i = threadIdx.x; i < num_tokens * hidden_size; i += 64) out[i] = x[i];"
DIMS = {"num_tokens": 2, "hidden_size": 64, "has_residual": 0}


def judged(
    contract: Contract,
    images: CompileCache,
    body: str,
    gate: GateName,
    seconds: float = 5.0,
    shared_bytes: int = 0,
    dependent: bool = False,
) -> Verdict:
    launch = {"entry": "rms", "block": [64, 1, 1], "shared_bytes": shared_bytes, "programmatic_dependent": dependent}
    plan = LaunchPlan.model_validate({"launches": [launch], "workspace": {"bytes": 64}})
    source = f"{HEAD}{body}\n}}\n"
    candidate = Candidate(contract=contract.id, target=Target.CUDA, source=source, plan=plan)
    options = Options(gates=(gate,), dims=DIMS, storages=(DType.FLOAT32,), call_seconds=seconds, quick=True)
    return judge(candidate, contract, options=options, cache=images)


def test_a_kernel_that_never_ends_is_killed(contracts: dict[str, Contract], images: CompileCache) -> None:
    body = "volatile float* w = reinterpret_cast<volatile float*>(workspace); while (true) w[0] = eps;"
    verdict = judged(contracts["residual_rmsnorm"], images, body, GateName.INTERFACE, seconds=1.0)
    assert verdict.failed_gate is not None
    assert verdict.failed_gate.findings[0].code == "timed-out"


def test_the_device_works_again_after_a_kill(contracts: dict[str, Contract], images: CompileCache) -> None:
    test_a_kernel_that_never_ends_is_killed(contracts, images)
    body = "for (int i = threadIdx.x; i < num_tokens * hidden_size; i += 64) out[i] = x[i];"
    verdict = judged(contracts["residual_rmsnorm"], images, body, GateName.INTERFACE)
    assert verdict.failed_gate is None
    assert "no-new-privileges" in verdict.environment.sandbox


@pytest.mark.parametrize("shared_bytes", [1024, 8192, 96 << 10])
@pytest.mark.parametrize("word", ["0", "255"])
def test_shared_memory_that_nobody_wrote_reads_as_nan(
    contracts: dict[str, Contract], images: CompileCache, shared_bytes: int, word: str
) -> None:
    body = f"extern __shared__ volatile float words[]; const float unwritten = words[{word}];\n"
    body += "for (int i = threadIdx.x; i < num_tokens * hidden_size; i += 64) out[i] = unwritten;"
    verdict = judged(contracts["residual_rmsnorm"], images, body, GateName.NUMERICS, shared_bytes=shared_bytes)
    assert verdict.failed_gate is not None
    assert verdict.failed_gate.findings[0].code == "not-finite"
    assert "nan" in verdict.failed_gate.findings[0].message


@pytest.mark.parametrize(
    ("body", "tool"),
    [
        ("out[threadIdx.x] = x[num_tokens * hidden_size + threadIdx.x];", "memcheck"),
        (
            "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; out[threadIdx.x] = s[63 - threadIdx.x];",
            "racecheck",
        ),
        ("out[threadIdx.x] = static_cast<float*>(workspace)[threadIdx.x % 16];", "initcheck"),
    ],
)
def test_compute_sanitizer_finds_it(contracts: dict[str, Contract], images: CompileCache, body: str, tool: str) -> None:
    if (reason := cuda.missing()) is not None:
        pytest.skip(reason)
    verdict = judged(contracts["residual_rmsnorm"], images, body, GateName.SANITIZER)
    assert verdict.gates[4].outcome is Outcome.FAILED
    assert tool in {f.code for f in verdict.gates[4].findings}


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        (
            "const float early = *const_cast<const volatile float*>(x + threadIdx.x); WAIT",
            f"{COPY} out[threadIdx.x] = early;",
            "read-early",
        ),
        ("", COPY, "written-early"),
        ("out[threadIdx.x] = 0.0f; WAIT", COPY, "written-early"),
        ("volatile float gamma = weight[threadIdx.x]; WAIT", COPY, None),
    ],
)
def test_an_early_launch_waits_for_what_the_kernel_in_front_writes(
    contracts: dict[str, Contract], images: CompileCache, first: str, then: str, code: str | None
) -> None:
    wait = 'asm volatile("griddepcontrol.wait;" : : : "memory");'
    body = f"{first.replace('WAIT', wait)}\n{then}"
    verdict = judged(contracts["residual_rmsnorm"], images, body, GateName.INTERFACE, dependent=True)
    failed = verdict.failed_gate
    assert (failed.findings[0].code if failed else None) == code
