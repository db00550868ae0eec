"""The gates and the judge on small candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kb.candidate import Candidate, Launch, LaunchPlan, Workspace
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.expr import Expr
from kb.manifest import Comparison, GateName, Outcome, ShapeTiming, Verdict
from runtime.compile_cache import CompileCache
from validator.gates import Event
from validator.judge import Options, judge
from validator.performance.verdict import performance_findings
from validator.worker import Worker

DIMS = {"num_tokens": 4, "hidden_size": 512, "has_residual": 1}
HEAD = """
extern "C" void norm(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
  for (int t = 0; t < num_tokens; ++t) {
    const T* row = x + t * hidden_size;
    T* rest = residual + t * hidden_size;
    T* to = out + t * hidden_size;
"""
RIGHT = """
    float sum = 0.0f;
    for (int i = 0; i < hidden_size; ++i) {
      rest[i] = from_float<T>(to_float(row[i]) + to_float(rest[i]));
      sum += to_float(rest[i]) * to_float(rest[i]);
    }
    const float r = 1.0f / std::sqrt(sum / hidden_size + eps);
    for (int i = 0; i < hidden_size; ++i)
      to[i] = from_float<T>(to_float(from_float<T>(to_float(rest[i]) * r)) * to_float(weight[i]));
"""
CORRECT = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS)


def source(body: str = RIGHT, after: str = "") -> str:
    return f"{HEAD}{body}  }}\n{after}}}\n"


def norm(text: str, **workspace: Any) -> Candidate:
    plan = LaunchPlan(launches=(Launch(entry="norm"),), workspace=Workspace(**workspace))
    return Candidate(contract="residual_rmsnorm", target=Target.CPU, source=text, plan=plan)


class Judge:
    """judge with this run's worker and cache, at one small shape."""

    def __init__(self, contract: Contract, images: CompileCache, worker: Worker) -> None:
        self.contract, self.images, self.worker = contract, images, worker

    def __call__(self, text: str, options: Options | None = None, **workspace: Any) -> Verdict:
        options = options or Options(gates=CORRECT, dims=DIMS, storages=(DType.BFLOAT16,), call_seconds=2)
        return judge(
            norm(text, **workspace), self.contract, options=options, seed=5, worker=self.worker, cache=self.images
        )

    def failure(self, text: str, **workspace: Any) -> tuple[str, str]:
        """(gate, first code)."""
        failed = self(text, **workspace).failed_gate
        assert failed is not None
        return failed.gate.value, failed.findings[0].code


@pytest.fixture
def run(contracts: dict[str, Contract], images: CompileCache, cpu_worker: Worker) -> Judge:
    return Judge(contracts["residual_rmsnorm"], images, cpu_worker)


def test_a_right_kernel_passes_and_its_numbers_are_recorded(run: Judge) -> None:
    verdict = run(source())
    assert verdict.failed_gate is None
    assert {e.tensor for e in verdict.errors} == {"out", "residual"}
    assert all(0 <= e.error <= e.allowed for e in verdict.errors)
    assert "seccomp" in verdict.environment.sandbox or "landlock" in verdict.environment.sandbox
    assert verdict.environment.compiler
    assert not verdict.accepted  # one shape, one type, and gates left out


@pytest.mark.parametrize(
    ("body", "after", "expected"),
    [
        (RIGHT, "  out[0] = out[0] ? out[0] : x;\n", ("compile", "compile-error")),
        (
            RIGHT.replace("i < hidden_size; ++i)\n      to", "i < hidden_size - 1; ++i)\n      to"),
            "",
            ("interface", "not-written"),
        ),
        (RIGHT, "  out[num_tokens * hidden_size] = out[0];\n", ("interface", "outside-buffer")),
        (RIGHT, "  const_cast<T*>(weight)[3] = from_float<T>(0.5f);\n", ("interface", "input-changed")),
        (RIGHT, "  *(volatile int*)nullptr = 1;\n", ("interface", "crashed")),
        (RIGHT, "  for (volatile int i = 0;; i = 1) {}\n", ("interface", "timed-out")),
        (RIGHT.replace("+ eps", "+ 0.1f"), "", ("numerics", "error-too-large")),
        (
            RIGHT.replace("to_float(from_float<T>(to_float(rest[i]) * r))", "to_float(rest[i]) * r"),
            "",
            ("numerics", "rounding-left-out"),
        ),
        (RIGHT.replace("* r))", "* r / (r - r)))"), "", ("numerics", "not-finite")),
    ],
    ids=[
        "does not compile",
        "one element short",
        "past the end",
        "changes an input",
        "crashes",
        "hangs",
        "another eps",
        "a round left out",
        "not finite",
    ],
)
def test_each_kind_of_mistake_is_found_by_its_gate(
    run: Judge, body: str, after: str, expected: tuple[str, str]
) -> None:
    gate, code = run.failure(source(body, after))
    # A round left out also makes single elements differ by a whole rounding step.
    assert (gate, code) == expected or (code == "error-too-large" and expected[1] == "rounding-left-out")


def test_the_workspace_may_be_used_and_not_overrun(run: Judge) -> None:
    use = "  for (int i = 0; i < 16; ++i) static_cast<float*>(workspace)[i] = 1.0f;\n"
    assert run(source(after=use), bytes=Expr("64")).failed_gate is None
    assert run.failure(source(after=use), bytes=Expr("60")) == ("interface", "outside-buffer")


def test_a_workspace_that_starts_zeroed_must_be_left_so(run: Judge) -> None:
    count = "  static_cast<int*>(workspace)[0] += 1;\n"
    reset = count + "  static_cast<int*>(workspace)[0] = 0;\n"
    assert run(source(after=reset), bytes=Expr("64"), zeroed="once").failed_gate is None
    assert run.failure(source(after=count), bytes=Expr("64"), zeroed="once") == ("interface", "workspace-not-zero")


def test_a_plan_that_makes_no_sense_fails_the_compile_gate(run: Judge) -> None:
    assert run.failure(source(), bytes=Expr("hidden_size // (has_residual - 1)")) == ("compile", "bad-launch")


def test_a_failed_gate_stops_the_later_ones_unless_told_to_go_on(run: Judge) -> None:
    broken = source(RIGHT, "  out[num_tokens * hidden_size] = out[0];\n")
    verdict = run(broken)
    assert [g.outcome for g in verdict.gates] == [Outcome.PASSED] * 2 + [Outcome.FAILED] + [Outcome.SKIPPED] * 3
    assert verdict.gates[3].reason == "the interface gate failed"
    options = Options(gates=CORRECT, dims=DIMS, storages=(DType.BFLOAT16,), keep_going=True)
    assert run(broken, options).gates[3].outcome is Outcome.FAILED


def test_events_tell_of_every_gate(contracts: dict[str, Contract], images: CompileCache, cpu_worker: Worker) -> None:
    events: list[Event] = []
    judge(
        norm(source()),
        contracts["residual_rmsnorm"],
        options=Options(gates=CORRECT, dims=DIMS, storages=(DType.BFLOAT16,)),
        worker=cpu_worker,
        cache=images,
        on_event=events.append,
    )
    assert [e.gate for e in events if e.result is not None] == list(GateName)
    assert any(e.share is not None and e.message for e in events)


def test_a_judgement_out_of_time_is_skipped_and_not_held_against_the_candidate(run: Judge) -> None:
    options = Options(gates=CORRECT, dims=DIMS, budget_seconds=0.0)
    verdict = run(source(), options)
    assert verdict.failed_gate is None
    assert "budget" in verdict.gates[2].reason or "spent" in verdict.gates[2].reason
    assert not verdict.accepted


def test_the_same_seed_gives_the_same_judgement(run: Judge) -> None:
    one, other = run(source()), run(source())
    assert one.errors == other.errors
    assert one.seed == other.seed == 5


def test_a_cuda_candidate_is_judged_as_far_as_it_can_be_without_a_gpu(
    contracts: dict[str, Contract], images: CompileCache
) -> None:
    pytest.importorskip("cuda.core")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    text = source().replace('extern "C" void', 'extern "C" __global__ void')
    for old, new in (("to_float(", "float("), ("from_float<T>(", "T("), ("std::sqrt", "sqrtf")):
        text = text.replace(old, new)
    plan = LaunchPlan(launches=(Launch(entry="rms"),))
    text = text.replace("void norm(", "void rms(")  # CUDA's headers have a norm of their own
    candidate = Candidate(contract="residual_rmsnorm", target=Target.CUDA, source=text, plan=plan)
    verdict = judge(candidate, contracts["residual_rmsnorm"], options=Options(quick=True), cache=images)
    assert [g.outcome for g in verdict.gates[:2]] == [Outcome.PASSED] * 2
    assert all(g.reason == "no cuda device on this machine" for g in verdict.gates[2:])
    assert verdict.gates[1].details["resources"]["rms"]["registers"] > 0
    assert not verdict.accepted


def test_candidate_and_contract_must_belong_together(contracts: dict[str, Contract]) -> None:
    with pytest.raises(ValueError, match="not 'rope'"):
        judge(norm(source()), contracts["rope"])
    with pytest.raises(ValueError, match="hidden_size"):
        judge(norm(source()), contracts["residual_rmsnorm"], dims={"num_tokens": 1, "has_residual": 0})


def test_timed_outputs_are_checked_and_timing_is_recorded(run: Judge) -> None:
    gates = (GateName.COMPILE, GateName.PERFORMANCE)
    options = Options(gates=gates, dims={**DIMS, "num_tokens": 1}, quick=True, timing_seconds=0.2)
    verdict = run(source(), options)
    (timing,) = verdict.timings
    assert timing.candidate_us > 0
    assert timing.baseline == "torch_eager"
    wrong = run(source(RIGHT.replace("+ eps", "+ 0.1f")), options)
    assert wrong.failed_gate is not None
    assert wrong.failed_gate.findings[0].code == "error-too-large"
    assert wrong.timings == ()


# --- verdicts on timings ---------------------------------------------------------------------------------------------


def timing(num_tokens: int, ratio: float, comparison: Comparison = Comparison.MATCHED) -> ShapeTiming:
    return ShapeTiming(
        dims={"num_tokens": num_tokens, "hidden_size": 4096, "intermediate_size": 12288},
        dtype=DType.BFLOAT16,
        candidate_us=10,
        candidate_us_interval=(9, 11),
        baseline="torch_eager",
        baseline_us=10 * ratio,
        baseline_us_interval=(9, 11),
        ratio=ratio,
        ratio_interval=(ratio - 0.01, ratio + 0.01),
        comparison=comparison,
        floor_us=5,
        bandwidth_gbps=4000,
        bandwidth_share=0.5,
        samples=10,
    )


@pytest.mark.parametrize(
    ("timings", "codes"),
    [
        ([timing(1, 1.2, Comparison.FASTER), timing(8, 1.0)], []),
        ([timing(1, 0.99), timing(8, 0.5, Comparison.SLOWER)], []),
        ([timing(1, 0.98), timing(8, 0.5, Comparison.SLOWER)], ["too-slow", "too-slow"]),
        ([timing(1, 9.0, Comparison.IMPOSSIBLE), timing(8, 1.2, Comparison.FASTER)], ["impossible"]),
    ],
    ids=["fast everywhere", "fast in one variant", "slow everywhere", "faster than memory"],
)
def test_a_candidate_needs_one_variant_and_nothing_impossible(
    contracts: dict[str, Contract], timings: list[ShapeTiming], codes: list[str]
) -> None:
    findings, _ = performance_findings(contracts["gated_mlp_up"], timings)
    assert [f.code for f in findings] == codes


def test_acceptance_needs_the_whole_trial(contracts: dict[str, Contract]) -> None:
    contract = contracts["residual_rmsnorm"]
    whole = Options()
    assert whole.whole(contract)
    assert Options(storages=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)).whole(contract)
    for narrowed in ({"quick": True}, {"dims": DIMS}, {"storages": (DType.BFLOAT16,)}):
        assert not replace(whole, **narrowed).whole(contract)  # type: ignore[arg-type]
