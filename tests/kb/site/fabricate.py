"""A library with made-up kernels and a hostile entry, for pages that the shipped store may not have yet."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.candidate import Candidate, Launch, LaunchPlan, Workspace
from kb.contract import Contract
from kb.digest import meaning_digest
from kb.dtype import DType, Target
from kb.expr import Expr
from kb.library import load_library
from kb.manifest import (
    BlockRef,
    Comparison,
    Environment,
    Finding,
    GateName,
    GateResult,
    Manifest,
    Origin,
    Outcome,
    ShapeError,
    ShapeTiming,
    Verdict,
)
from kb.principle import Principle
from kb.store import KernelStore

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "decode-gemv/hostile-entry"
# Each would do something if it were taken for markup; the page must show it, letter by letter.
HOSTILE_STRINGS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "[click](javascript:window.hacked=1)",
    "{: onclick=window.hacked=1 }",
    '--8<-- "pyproject.toml"',
    "__shared__ and *p[i] and vector<float>",
    "{{ config.site_name }} {% raw %}",
    "&lt;b&gt; &amp; `tick` ``two`` ~~~ | pipe",
    '</div></p></td></pre></details><b onmouseover="window.hacked=1">',
)
# What would start a block of another kind at the start of a line.
_BLOCKS = "!!! danger\n\n    indented\n\n# head\n\n- item\n\n1. number\n\n"


def copy_library(folder: Path, families: Sequence[str]) -> Path:
    """Some families of the project's entries with all contracts and records, without its kernels and git history."""
    for name in ("contracts", "bench/results", *(f"principles/{family}" for family in families)):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "kernels").mkdir()
    return folder


def add_hostile_entry(folder: Path) -> None:
    """A block whose every free field holds markup."""
    everything = " ".join(HOSTILE_STRINGS)
    lines = [
        f"id: {HOSTILE}",
        f"title: {_quoted(HOSTILE_STRINGS[0] + ' ' + HOSTILE_STRINGS[8][:40])}",
        "kind: dead_end",
        "status: draft",
        "version: 1",
        "patterns: [gated_mlp_up]",
        "when: {target: [cuda]}",
        f"claim: {_quoted(everything)}",
        f"why: {_quoted(_BLOCKS + everything)}",
        "effect: unknown",
        "evidence:",
        "  - kind: published",
        f"    what: {_quoted(everything)}",
        f"    hardware: {_quoted(HOSTILE_STRINGS[1])}",
        "    value: {number: 1.5, unit: " + _quoted("<b>µs</b>") + "}",
        f"    baseline: {_quoted(HOSTILE_STRINGS[2])}",
        f"    reference: {_quoted('javascript:window.hacked=1')}",
        f"retry_when: {_quoted(everything)}",
        f"references: [{_quoted('javascript:alert(1)')}, {_quoted('https://example.org/a(b)_c_?q=1&r=2')}, "
        f"{_quoted('data:text/html,<script>window.hacked=1</script>')}]",
        f"authors: [{_quoted(HOSTILE_STRINGS[8])}]",
        'created: "2026-11-30"',
        'modified: "2026-11-30"',
    ]
    path = folder / "principles" / f"{HOSTILE}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def add_kernels(folder: Path) -> list[str]:
    """Three kernels of ``gated_mlp_up``: two admitted, one revoked and hostile. Returns their digests."""
    library = load_library(folder)
    contract = library.contracts["gated_mlp_up"]
    blocks = [p for p in library.principles.values() if "gated_mlp_up" in p.patterns and p.id != HOSTILE][:6]
    store = KernelStore(folder / "kernels")
    digests = []
    for number, ratio in enumerate((1.31, 1.12)):
        candidate = _candidate(f"the {number + 1}. way", number)
        manifest = _manifest(candidate, contract, blocks, ratio)
        store.admit(candidate, manifest, _transcript(candidate, manifest, contract))
        digests.append(candidate.digest)
    hostile = _candidate(" ".join(HOSTILE_STRINGS), 3)
    manifest = _manifest(hostile, contract, blocks, 1.05)
    store.admit(hostile, manifest, _transcript(hostile, manifest, contract))
    store.revoke(hostile.digest, " ".join(HOSTILE_STRINGS))
    return [*digests, hostile.digest]


def _candidate(notes: str, number: int) -> Candidate:
    source = (
        "// gated_mlp_up: one warp a pair of rows.\n"
        f"// {notes}\n"
        'extern "C" __global__ void gated_mlp_up(const T* __restrict__ x, const T* __restrict__ w_gate_up,\n'
        "    T* __restrict__ out, void* __restrict__ workspace) {\n"
        "  __shared__ float partial[32];\n"
        f"  const int row = blockIdx.x * {number + 4} + threadIdx.x / 32;\n"
        "  if (row < intermediate_size) partial[threadIdx.x % 32] = 0.0f;\n\n"
        "  ```\n  ~~~~\n"
        "}\n"
    )
    launch = Launch(
        entry="gated_mlp_up",
        grid=(Expr("ceil_div(intermediate_size, 4)"), Expr("1"), Expr("1")),
        block=(Expr("128"), Expr("1"), Expr("1")),
        programmatic_dependent=True,
    )
    plan = LaunchPlan(launches=(launch,), workspace=Workspace(bytes=Expr("4 * num_sms")))
    return Candidate(contract="gated_mlp_up", target=Target.CUDA, source=source, plan=plan, notes=notes)


def _timings(contract: Contract, ratio: float) -> tuple[ShapeTiming, ...]:
    found = []
    for i, dims in enumerate(contract.sweep.performance):
        microseconds = 42.0 + 3 * i
        shape_ratio = ratio - 0.05 * i
        baseline = microseconds * shape_ratio
        found.append(
            ShapeTiming(
                dims=dims,
                dtype=DType.BFLOAT16,
                candidate_us=microseconds,
                candidate_us_interval=(microseconds - 0.4, microseconds + 0.6),
                baseline="torch_eager",
                baseline_us=baseline,
                baseline_us_interval=(baseline - 0.5, baseline + 0.5),
                ratio=shape_ratio,
                ratio_interval=(shape_ratio - 0.02, shape_ratio + 0.02),
                comparison=Comparison.FASTER,
                floor_us=38.0,
                bandwidth_gbps=4490.0,
                bandwidth_share=38.0 / microseconds,
                samples=200,
                all_baselines_us={"torch_eager": baseline, "triton_gated_mlp_up": baseline * 1.1},
            )
        )
    return tuple(found)


def _verdict(
    candidate: Candidate, contract: Contract, *, ratio: float | None, failed: Finding | None = None
) -> Verdict:
    gates = [
        GateResult(gate=GateName.STATIC, outcome=Outcome.PASSED, seconds=0.1, details={"bytes": len(candidate.source)}),
        GateResult(
            gate=GateName.COMPILE,
            outcome=Outcome.PASSED,
            seconds=1.2,
            details={"resources": {"gated_mlp_up": {"registers": 64, "spills": 0}}},
        ),
    ]
    if failed is not None:
        gates.append(GateResult(gate=GateName.NUMERICS, outcome=Outcome.FAILED, findings=(failed,), seconds=4.0))
    else:
        gates += [
            GateResult(gate=GateName.INTERFACE, outcome=Outcome.PASSED, seconds=2.0),
            GateResult(gate=GateName.NUMERICS, outcome=Outcome.PASSED, seconds=9.0),
            GateResult(gate=GateName.SANITIZER, outcome=Outcome.SKIPPED, reason="compute-sanitizer is not installed"),
            GateResult(gate=GateName.PERFORMANCE, outcome=Outcome.PASSED, seconds=20.0),
        ]
    error = ShapeError(
        dims=contract.sweep.correctness[0],
        dtype=DType.BFLOAT16,
        distribution="outliers",
        tensor="out",
        error=0.8,
        baseline_error=1.0,
        allowed=2.25,
    )
    return Verdict(
        candidate=candidate.digest,
        contract=contract.id,
        contract_version=contract.version,
        target=candidate.target,
        accepted=failed is None,
        gates=tuple(gates),
        errors=(error,),
        timings=() if ratio is None else _timings(contract, ratio),
        environment=Environment(
            hardware="one NVIDIA H200",
            arch="sm_90",
            driver="580.1",
            compiler="NVRTC 13.0",
            software={"torch": "2.13"},
            sandbox=("seccomp", "landlock"),
        ),
        seed=7,
        judged_at=datetime(2026, 11, 30, 12, tzinfo=UTC),
    )


def _manifest(candidate: Candidate, contract: Contract, blocks: list[Principle], ratio: float) -> Manifest:
    refs = tuple(BlockRef(id=b.id, version=b.version, digest=meaning_digest(b)) for b in blocks)
    return Manifest(
        digest=candidate.digest,
        contract=contract.id,
        contract_version=contract.version,
        contract_digest=meaning_digest(contract),
        target=candidate.target,
        plan=candidate.plan,
        notes=candidate.notes,
        status="admitted",
        origin=Origin(
            authorship="llm", provider="exchange", model="an author", prompt_digest="a" * 64, principles=refs, rounds=3
        ),
        verdicts=(_verdict(candidate, contract, ratio=ratio),),
        admitted_at=datetime(2026, 11, 30, 13, tzinfo=UTC),
    )


def _transcript(candidate: Candidate, manifest: Manifest, contract: Contract) -> list[dict[str, Any]]:
    """Three rounds: a reply that held nothing, one that failed at numerics, the admitted one."""
    earlier = _candidate("a first try", 9)
    finding = Finding(
        code="error-too-large",
        message="out is 3.1 times what is allowed",
        line=6,
        shape=contract.sweep.correctness[1],
        distribution="outliers",
        tensor="out",
        index=(0, 5),
    )
    failed = _verdict(earlier, contract, ratio=0.8, failed=finding)
    usage = {"input_tokens": 9000, "cached_input_tokens": 7000, "output_tokens": 2500, "cost_usd": None}
    events: list[dict[str, Any]] = [
        {"event": "search", "key": "search", "provider": "exchange", "seed": None},
        {"event": "prefix", "key": "b" * 64, "text": "# Mandate\n\nWrite <b>a kernel</b>.\n\n- one"},
    ]
    attempts = (
        (1, None, None, [{"code": "no-source", "message": "the reply held no <source>"}]),
        (2, earlier, failed, []),
        (3, candidate, manifest.verdicts[0], []),
    )
    for number, kernel, verdict, findings in attempts:
        key = f"round-{number}-lane-1"
        events += [
            {"event": "prompt", "key": key, "lane": 0, "round": number},
            {"event": "reply", "key": key, "lane": 0, "completion": {"model": "an author", "text": "", "usage": usage}},
            {
                "event": "attempt",
                "key": key,
                "lane": 0,
                "round": number,
                "candidate": kernel.model_dump(mode="json") if kernel else None,
                "verdict": verdict.model_dump(mode="json") if verdict else None,
                "findings": findings,
            },
        ]
    return events


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
