from __future__ import annotations

from typing import Any

import pytest

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import GateName, Outcome
from runtime.compile_cache import CompileCache
from validator.judge import Options, judge
from validator.sanitizers import cpu, cuda

SOURCE = """
extern "C" void norm(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
  float seen = 0.0f;
  for (int i = 0; i < num_tokens * hidden_size; ++i) out[i] = x[i];
  BODY
  if (seen == 12345.0f) out[0] = x[1];
}
"""


def sanitized(
    contract: Contract, images: CompileCache, body: str, *, call_seconds: float = 1.0, **plan: Any
) -> tuple[Outcome, list[Any]]:
    candidate = Candidate(
        contract=contract.id,
        target=Target.CPU,
        source=SOURCE.replace("BODY", body),
        plan=LaunchPlan.model_validate({"launches": [Launch(entry="norm")], **plan}),
    )
    options = Options(
        gates=(GateName.SANITIZER,),
        dims={"num_tokens": 2, "hidden_size": 64, "has_residual": 0},
        storages=(DType.FLOAT32,),
        quick=True,
        call_seconds=call_seconds,
    )
    result = judge(candidate, contract, options=options, cache=images).gates[4]
    return result.outcome, list(result.findings)


@pytest.fixture
def contract(contracts: dict[str, Contract]) -> Contract:
    if (reason := cpu.missing()) is not None:
        pytest.skip(reason)
    return contracts["residual_rmsnorm"]


def test_a_clean_kernel_passes_under_the_sanitizers(contract: Contract, images: CompileCache) -> None:
    assert sanitized(contract, images, "seen = to_float(weight[hidden_size - 1]);") == (Outcome.PASSED, [])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("seen = to_float(x[num_tokens * hidden_size]);", "bad-memory-access"),
        ("seen = to_float(weight[-1]);", "bad-memory-access"),
        ("volatile int n = 4; float kept[4] = {}; kept[n] = eps; seen = kept[0];", "undefined-behaviour"),
        ("volatile int n = 40; seen = float(1 << n);", "undefined-behaviour"),
        ("static_cast<float*>(workspace)[16] = 1.0f;", "bad-memory-access"),
    ],
    ids=["reads past the end", "reads before the start", "local array", "shift too far", "workspace"],
)
def test_what_guard_bands_cannot_see_is_found_with_its_line(
    contract: Contract, images: CompileCache, body: str, code: str
) -> None:
    outcome, findings = sanitized(contract, images, body, workspace={"bytes": 64})
    assert outcome is Outcome.FAILED
    assert findings[0].code == code
    assert findings[0].line == 1 + SOURCE.splitlines().index("  BODY")


def test_a_kernel_that_hangs_under_the_sanitizers_is_killed(contract: Contract, images: CompileCache) -> None:
    _, findings = sanitized(contract, images, "for (volatile int i = 0;; i = 1) {}", call_seconds=0.1)
    assert [f.code for f in findings] == ["timed-out"]


MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at norm+0x150 in kernel.cu:17
=========     by thread (31,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at norm+0x90 in kernel.cu:9
=========     and Read access at norm+0xb0 in kernel.cu:11 [4 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "output", "line", "text"),
    [
        ("memcheck", MEMCHECK, 17, "Invalid __global__ write of size 4 bytes"),
        ("racecheck", RACE, 9, "Error: Race reported between Write access at norm+0x90 in kernel.cu:9"),
    ],
)
def test_reports_of_compute_sanitizer_become_findings(tool: str, output: str, line: int, text: str) -> None:
    finished, (finding,) = cuda.read_report(tool, 86, output)
    assert finished
    assert (finding.code, finding.line, finding.message) == (tool, line, text)


def test_a_tool_that_breaks_down_is_not_a_pass() -> None:
    finished, (finding,) = cuda.read_report("memcheck", 1, "Traceback\nImportError: no cupy\n")
    assert not finished
    assert finding.code == "memcheck-failed"
    assert "no cupy" in finding.message
    assert cuda.read_report("memcheck", 0, "========= ERROR SUMMARY: 0 errors\n") == (True, [])
