"""When a principle holds: structured conditions that are evaluated against a situation, never read by eye."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from kb.dtype import DType, DTypeName, Target, TargetName
from kb.expr import Expr
from kb.text import Symbol

Bound = Literal["memory", "compute", "latency"]
Arch = Annotated[str, StringConstraints(pattern=r"^(sm_[0-9]{2,3}|x86_64|aarch64)$")]

# Built when first used: validators of parts are built into the whole, so building each at import would double the work.
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class ArchRange(BaseModel):
    """Compute capabilities ``min`` to ``max``, both included; for ``cpu`` use ``any_of``."""

    model_config = _FROZEN

    min: Arch | None = None
    max: Arch | None = None
    any_of: tuple[Arch, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _says_something(self) -> ArchRange:
        if self.min is None and self.max is None and not self.any_of:
            raise ValueError("give min, max or any_of")
        for bound in (self.min, self.max):
            if bound is not None and not bound.startswith("sm_"):
                raise ValueError(f"'{bound}' has no order; list it under any_of")
        if self.min and self.max and _capability(self.min) > _capability(self.max):
            raise ValueError(f"empty range: {self.min} is newer than {self.max}")
        return self

    def holds(self, arch: str) -> bool:
        if self.any_of and arch in self.any_of:
            return True
        if not arch.startswith("sm_") or (self.min is None and self.max is None):
            return False
        value = _capability(arch)
        above = self.min is None or value >= _capability(self.min)
        return above and (self.max is None or value <= _capability(self.max))


class BatchRange(BaseModel):
    """Rows (``num_tokens``) of a step, ``min`` to ``max``, both included."""

    model_config = _FROZEN

    min: int = Field(default=1, ge=1)
    max: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _not_empty(self) -> BatchRange:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"empty range: min {self.min} is above max {self.max}")
        return self


class When(BaseModel):
    """Conditions joined by *and*; an absent one always holds."""

    model_config = _FROZEN

    target: tuple[TargetName, ...] = Field(default=(), strict=False, description="Targets it holds on; absent: all.")
    arch: ArchRange | None = Field(default=None, description="GPU compute capability or CPU architecture.")
    dtype: tuple[DTypeName, ...] = Field(default=(), strict=False, description="Storage dtypes it holds for.")
    batch: BatchRange | None = Field(default=None, description="Range of num_tokens.")
    bound: Bound | None = Field(default=None, description="What limits the kernel where it holds.")
    dims: tuple[Expr, ...] = Field(default=(), strict=False, description="Conditions over the contract's dims.")
    features: tuple[Symbol, ...] = Field(default=(), strict=False, description="Features model and target must have.")
    without: tuple[Symbol, ...] = Field(default=(), strict=False, description="Features they must not have.")


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known where a principle might apply. None and absent dims mean *not known yet*.

    ``undecided`` names features that may or may not be there although others in ``features`` are known.
    """

    target: Target | None = None
    arch: str | None = None
    dtype: DType | None = None
    bound: Bound | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] | None = None
    undecided: frozenset[str] = frozenset()

    def has(self, feature: str) -> bool | None:
        """Whether ``feature`` is there; None where that is not known."""
        if self.features is None or feature in self.undecided:
            return None
        return feature in self.features


@dataclass(frozen=True, slots=True)
class Applicability:
    """``holds`` is True, False, or None where the situation leaves it open; ``reason`` names the deciding condition."""

    holds: bool | None
    reason: str


def applies(when: When, situation: Situation) -> Applicability:
    """Evaluate ``when``. The first condition that fails decides; else the first unknown one; else it holds."""
    unknown: list[str] = []
    for verdict, text in _conditions(when, situation):
        if verdict is False:
            return Applicability(False, text)
        if verdict is None:
            unknown.append(text)
    if unknown:
        return Applicability(None, "not decided: " + "; ".join(unknown))
    return Applicability(True, "all conditions hold")


def describe(when: When) -> tuple[str, ...]:
    """Each condition in words, in the order they are evaluated; empty for what always holds."""
    return tuple(text for _, text in _conditions(when, Situation()))


def _conditions(when: When, now: Situation) -> list[tuple[bool | None, str]]:
    found: list[tuple[bool | None, str]] = []
    if when.target:
        names = ", ".join(when.target)
        found.append((None if now.target is None else now.target in when.target, f"target is {names}"))
    if when.arch:
        text = f"architecture {_show_arch(when.arch)}"
        found.append((None if now.arch is None else when.arch.holds(now.arch), text))
    if when.dtype:
        names = ", ".join(when.dtype)
        found.append((None if now.dtype is None else now.dtype in when.dtype, f"dtype is {names}"))
    if when.batch:
        found.append((_in_batch(when.batch, now.dims.get("num_tokens")), f"num_tokens {_show_batch(when.batch)}"))
    if when.bound:
        found.append((None if now.bound is None else now.bound == when.bound, f"{when.bound}-bound"))
    for condition in when.dims:
        value = condition.evaluate_partial(now.dims)
        found.append((None if value is None else bool(value), condition.text))
    for feature in when.features:
        found.append((now.has(feature), f"{feature} is there"))
    for feature in when.without:
        there = now.has(feature)
        found.append((None if there is None else not there, f"{feature} is not there"))
    return found


def _in_batch(batch: BatchRange, num_tokens: int | None) -> bool | None:
    if num_tokens is None:
        return None
    return num_tokens >= batch.min and (batch.max is None or num_tokens <= batch.max)


def _show_batch(batch: BatchRange) -> str:
    if batch.max is None:
        return f">= {batch.min}"
    return f"== {batch.min}" if batch.min == batch.max else f"in {batch.min}..{batch.max}"


def _show_arch(arch: ArchRange) -> str:
    parts = [f">= {arch.min}" if arch.min else "", f"<= {arch.max}" if arch.max else "", ", ".join(arch.any_of)]
    return " ".join(p for p in parts if p)


def _capability(arch: str) -> int:
    match = re.fullmatch(r"sm_([0-9]+)", arch)
    if match is None:
        raise ValueError(f"'{arch}' is not a compute capability such as sm_90")
    return int(match[1])
