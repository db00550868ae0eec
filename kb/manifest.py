"""What is recorded about a kernel: which gates judged it, on what, with which numbers, and where it came from."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kb.candidate import LaunchPlan
from kb.dtype import DTypeName, TargetName
from kb.text import ContractId, Digest, Line, PrincipleId

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)


class GateName(StrEnum):
    """The gates, in the order they run."""

    STATIC = "static"
    COMPILE = "compile"
    INTERFACE = "interface"
    NUMERICS = "numerics"
    SANITIZER = "sanitizer"
    PERFORMANCE = "performance"


class Outcome(StrEnum):
    """``skipped`` is recorded with its reason and never counts as passed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Comparison(StrEnum):
    """Speed against the strongest baseline. ``impossible``: below the bandwidth floor, so something is not computed."""

    FASTER = "faster"
    MATCHED = "matched"
    SLOWER = "slower"
    IMPOSSIBLE = "impossible"


class Finding(BaseModel):
    """One thing a gate has to say, structured so that it can go back to the author of the candidate."""

    model_config = _FROZEN

    code: Line = Field(description="Stable, such as 'outside-buffer' or 'error-too-large'.")
    message: str
    line: int | None = Field(default=None, description="Line of the candidate's source it points at.")
    shape: dict[str, int] | None = None
    distribution: str | None = None
    tensor: str | None = None
    index: tuple[int, ...] | None = Field(default=None, strict=False)
    details: dict[str, Any] = Field(default_factory=dict)


class GateResult(BaseModel):
    """Outcome of one gate. ``details`` holds what the gate measured (registers, worst error ratio, layers active)."""

    model_config = _FROZEN

    gate: Annotated[GateName, Field(strict=False)]
    outcome: Annotated[Outcome, Field(strict=False)]
    findings: Annotated[tuple[Finding, ...], Field(strict=False)] = ()
    seconds: float = 0.0
    reason: str = Field(default="", description="Why it was skipped.")
    details: dict[str, Any] = Field(default_factory=dict)


class ShapeError(BaseModel):
    """Worst error at one shape: relative to the float64 truth, and as a share of what is allowed."""

    model_config = _FROZEN

    dims: dict[str, int]
    dtype: DTypeName
    distribution: str
    tensor: str
    error: float
    baseline_error: float
    allowed: float


class ShapeTiming(BaseModel):
    """Interleaved timing at one shape. Times in microseconds a call; intervals are 95 % bootstrap."""

    model_config = _FROZEN

    dims: dict[str, int]
    dtype: DTypeName
    candidate_us: float
    candidate_us_interval: Annotated[tuple[float, float], Field(strict=False)]
    baseline: str = Field(description="The strongest baseline present.")
    baseline_us: float
    baseline_us_interval: Annotated[tuple[float, float], Field(strict=False)]
    ratio: float = Field(description="T_baseline / T_candidate.")
    ratio_interval: Annotated[tuple[float, float], Field(strict=False)]
    comparison: Annotated[Comparison, Field(strict=False)]
    floor_us: float = Field(description="Fewest bytes over measured bandwidth.")
    bandwidth_gbps: float = Field(description="Read bandwidth measured in the same run, GB/s.")
    bandwidth_share: float = Field(description="floor_us / candidate_us.")
    samples: int
    all_baselines_us: dict[str, float] = Field(default_factory=dict)


class Environment(BaseModel):
    """Where a record was made."""

    model_config = _FROZEN

    hardware: str
    arch: str
    driver: str = ""
    compiler: str
    software: dict[str, str] = Field(default_factory=dict)
    sandbox: Annotated[tuple[str, ...], Field(strict=False)] = Field(default=(), description="Isolation layers active.")
    clocks: dict[str, float] = Field(default_factory=dict)


class Verdict(BaseModel):
    """The judgement of one candidate: every gate's result, all errors and timings, and whether it is accepted."""

    model_config = _FROZEN

    candidate: Digest
    contract: ContractId
    contract_version: int
    target: TargetName
    accepted: bool
    gates: Annotated[tuple[GateResult, ...], Field(strict=False)]
    errors: Annotated[tuple[ShapeError, ...], Field(strict=False)] = ()
    timings: Annotated[tuple[ShapeTiming, ...], Field(strict=False)] = ()
    environment: Environment
    seed: int
    judged_at: Annotated[datetime, Field(strict=False)]
    at: dict[str, int] | None = Field(
        default=None,
        description="The compile-time dims that alone were tried; absent: all that the contract asks for.",
    )

    @property
    def failed_gate(self) -> GateResult | None:
        """The first gate that failed."""
        return next((g for g in self.gates if g.outcome is Outcome.FAILED), None)


class BlockRef(BaseModel):
    """A principle as it stood in the prompt."""

    model_config = _FROZEN

    id: PrincipleId
    version: int
    digest: Digest


class Origin(BaseModel):
    """How a kernel came to be. ``hand-written`` kernels are never called LLM-authored."""

    model_config = _FROZEN

    authorship: Literal["llm", "hand-written", "template"]
    provider: str = ""
    model: str = ""
    prompt_digest: Digest | None = None
    principles: Annotated[tuple[BlockRef, ...], Field(strict=False)] = ()
    rounds: int = 0
    seeded_from: Digest | None = None


class Manifest(BaseModel):
    """``manifest.yaml`` beside an admitted kernel."""

    model_config = _FROZEN

    format: Literal[1] = 1
    digest: Digest
    contract: ContractId
    contract_version: int
    contract_digest: Digest
    target: TargetName
    plan: LaunchPlan
    notes: str = ""
    status: Literal["admitted", "revoked"]
    reason: str = ""
    origin: Origin
    verdicts: Annotated[tuple[Verdict, ...], Field(min_length=1, strict=False)]
    admitted_at: Annotated[datetime, Field(strict=False)]
    transcript_digest: Digest | None = Field(default=None, description="SHA-256 of transcript.jsonl.")

    @property
    def acceptance(self) -> Verdict:
        """The latest verdict that accepted the kernel as a whole; the latest of all where there is none."""
        whole = (v for v in reversed(self.verdicts) if v.accepted and v.at is None)
        return next(whole, self.verdicts[-1])
