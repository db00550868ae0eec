"""What an LLM returns: source, a launch plan and notes. Data only; nothing here runs anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from kb.dtype import Target, TargetName
from kb.expr import Expr, ExprError
from kb.text import ContractId

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)

MAX_SOURCE_BYTES = 200_000
EntryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=80)]
Triple = Annotated[tuple[Expr, Expr, Expr], Field(strict=False)]
_ONE = Expr("1")


class Launch(BaseModel):
    """One kernel launch. Sizes are expressions over the contract's dims and the device symbols (``num_sms``).

    For ``cpu`` only ``entry`` is used: the host function is called once and parallelises itself with OpenMP.
    """

    model_config = _FROZEN

    entry: EntryName
    grid: Triple = (_ONE, _ONE, _ONE)
    block: Triple = (_ONE, _ONE, _ONE)
    shared_bytes: Expr = Expr("0")
    cluster: Triple = (_ONE, _ONE, _ONE)
    cooperative: bool = False
    programmatic_dependent: bool = False
    when: Expr | None = Field(default=None, description="Launch only where this holds, e.g. 'num_tokens > 4'.")


class Workspace(BaseModel):
    """Scratch memory, passed as the last argument.

    ``zeroed``: ``never`` (contents undefined) or ``once`` (zero when allocated; the kernel must leave it zero,
    so that a counter works again on the next call without a memset in the step).
    """

    model_config = _FROZEN

    bytes: Expr = Expr("0")
    zeroed: Literal["never", "once"] = "never"


class LaunchPlan(BaseModel):
    """The launches of one call, in order, on one stream."""

    model_config = _FROZEN

    launches: Annotated[tuple[Launch, ...], Field(min_length=1, max_length=8, strict=False)]
    workspace: Workspace = Workspace()


class Candidate(BaseModel):
    """A complete kernel for one contract on one target."""

    model_config = _FROZEN

    contract: ContractId
    target: TargetName
    source: str
    plan: LaunchPlan
    notes: str = Field(default="", max_length=8000)

    @model_validator(mode="after")
    def _bounded(self) -> Candidate:
        size = len(self.source.encode())
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"source of {size} bytes; {MAX_SOURCE_BYTES} at most")
        if not self.source.strip():
            raise ValueError("the source is empty")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over contract id, target, source and plan: what decides behaviour, and nothing else."""
        plan = json.dumps(self.plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        parts = (self.contract, self.target.value, self.source, plan)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class ResolvedLaunch(BaseModel):
    """A launch with its sizes computed."""

    model_config = _FROZEN

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    programmatic_dependent: bool = False


def resolve(plan: LaunchPlan, env: Mapping[str, int]) -> tuple[tuple[ResolvedLaunch, ...], int]:
    """Launches that apply under ``env`` (dims and device symbols) and the workspace's bytes.

    Raises ExprError when an expression reads an unknown name or gives a size no launch can have.
    """
    launches = tuple(
        _resolve(launch, env) for launch in plan.launches if launch.when is None or launch.when.evaluate(env)
    )
    if not launches:
        raise ExprError("no launch applies at these dims")
    size = plan.workspace.bytes.evaluate_int(env)
    if not 0 <= size <= 2**32:
        raise ExprError(f"workspace.bytes = {size}; 0 to 4294967296 is possible")
    return launches, size


def _resolve(launch: Launch, env: Mapping[str, int]) -> ResolvedLaunch:
    def triple(name: str, values: tuple[Expr, Expr, Expr], limits: tuple[int, int, int]) -> tuple[int, int, int]:
        x, y, z = (v.evaluate_int(env) for v in values)
        for axis, size, limit in zip("xyz", (x, y, z), limits, strict=True):
            if not 1 <= size <= limit:
                raise ExprError(f"{launch.entry}: {name}.{axis} = {size}; 1 to {limit} is possible")
        return x, y, z

    block = triple("block", launch.block, (1024, 1024, 64))
    if block[0] * block[1] * block[2] > 1024:
        raise ExprError(f"{launch.entry}: a block of {block[0] * block[1] * block[2]} threads; 1024 at most")
    shared = launch.shared_bytes.evaluate_int(env)
    if not 0 <= shared <= 232_448:
        raise ExprError(f"{launch.entry}: shared_bytes = {shared}; 0 to 232448 is possible")
    return ResolvedLaunch(
        entry=launch.entry,
        grid=triple("grid", launch.grid, (2**31 - 1, 65535, 65535)),
        block=block,
        shared_bytes=shared,
        cluster=triple("cluster", launch.cluster, (16, 16, 16)),
        cooperative=launch.cooperative,
        programmatic_dependent=launch.programmatic_dependent,
    )


__all__ = ["Candidate", "Launch", "LaunchPlan", "ResolvedLaunch", "Target", "Workspace", "resolve"]
