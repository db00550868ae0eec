"""A search without network or compiler: replies and verdicts are made up, everything in between is real."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from generator.providers.protocol import Ask, Completion, Usage
from generator.render import Request
from generator.search import Plan
from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import Library, library_root, load_library
from kb.manifest import (
    Comparison,
    Environment,
    Finding,
    GateName,
    GateResult,
    Outcome,
    ShapeTiming,
    Verdict,
)

LIBRARY: Library = load_library(library_root())
CONTRACT: Contract = LIBRARY.contracts["gated_mlp_up"]


def plan(**changes: object) -> Plan:
    request = Request(Target.CPU, "x86_64", dtype=DType.BFLOAT16)
    defaults: dict[str, object] = {
        "contract": CONTRACT,
        "principles": LIBRARY.principles,
        "request": request,
        "rounds": 4,
    }
    return Plan(**(defaults | changes))  # type: ignore[arg-type]


def reply_text(tag: str, ratio: float) -> str:
    """A reply whose source states how the made-up judge shall time it; ``ratio`` 0 fails numerics."""
    return (
        f"Here is my kernel.\n<source>\n// {tag} ratio={ratio}\nvoid gate_up() {{}}\n</source>\n"
        f"<plan>\nlaunches:\n  - entry: gate_up\n</plan>\n<notes>\nThe {tag} idea is bound by bandwidth.\n</notes>\n"
    )


class Scripted:
    """Answers from ``ratios[lane][round - 1]``; a text there is the reply itself. Counts what it was asked."""

    name = "scripted"

    def __init__(self, ratios: dict[int, list[float | str]], log: Path | None = None) -> None:
        self._ratios = ratios
        self._log = log
        self.asked: list[Ask] = []

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        self.asked.append(question)
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(question.key + "\n")
        _, number, _, lane = question.key.split("-")
        script = self._ratios[int(lane)][int(number) - 1]
        text = script if isinstance(script, str) else reply_text(f"{lane}{number}", script)
        return Completion(text=text, model="scripted-1", usage=Usage(input_tokens=100, output_tokens=50, cost_usd=0.01))


def judge(candidate: Candidate, seed: int) -> Verdict:
    """Reads the ratio from the source's comment; the same candidate and seed give the same verdict."""
    ratio = float(candidate.source.split("ratio=")[1].split()[0])
    right = ratio > 0
    accepted = ratio >= 0.99
    gates = [
        GateResult(
            gate=GateName.NUMERICS,
            outcome=Outcome.PASSED if right else Outcome.FAILED,
            findings=()
            if right
            else (
                Finding(
                    code="error-too-large",
                    message="error 0.5, allowed 0.01",
                    tensor="out",
                    index=(0, 7),
                    shape={"num_tokens": 3},
                    distribution="outliers",
                ),
            ),
        )
    ]
    if right:
        gates.append(GateResult(gate=GateName.PERFORMANCE, outcome=Outcome.PASSED if accepted else Outcome.FAILED))
    stamp = int(hashlib.sha256(f"{candidate.digest}{seed}".encode()).hexdigest()[:6], 16)
    return Verdict(
        candidate=candidate.digest,
        contract=candidate.contract,
        contract_version=CONTRACT.version,
        target=candidate.target,
        accepted=accepted,
        gates=tuple(gates),
        timings=(_timing(ratio),) if right else (),
        environment=Environment(hardware="a test machine", arch="x86_64", compiler="g++ 12"),
        seed=seed,
        judged_at=datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=stamp % 80_000),
    )


def _timing(ratio: float) -> ShapeTiming:
    return ShapeTiming(
        dims=dict(CONTRACT.sweep.performance[0]),
        dtype=DType.BFLOAT16,
        candidate_us=100.0 / ratio,
        candidate_us_interval=(99.0 / ratio, 101.0 / ratio),
        baseline="torch_eager",
        baseline_us=100.0,
        baseline_us_interval=(99.0, 101.0),
        ratio=ratio,
        ratio_interval=(ratio * 0.99, ratio * 1.01),
        comparison=Comparison.FASTER if ratio > 1.02 else Comparison.MATCHED if ratio > 0.98 else Comparison.SLOWER,
        floor_us=40.0,
        bandwidth_gbps=20.0,
        bandwidth_share=0.4 * ratio,
        samples=30,
    )
