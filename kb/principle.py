"""The principle block: one design decision, falsified dead end or mandate, with its evidence."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from kb.condition import When
from kb.text import ContractId, Digest, IsoDate, Line, PrincipleId, Prose

# Built when first used: validators of parts are built into the whole, so building each at import would double the work.
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Kind(StrEnum):
    """What sort of knowledge a block holds."""

    DECISION = "decision"
    DEAD_END = "dead_end"
    MANDATE = "mandate"


class Status(StrEnum):
    """Where an entry is in its life. Only accepted entries are rendered by default."""

    DRAFT = "draft"
    ACCEPTED = "accepted"
    SUPERSEDED = "superseded"
    RETIRED = "retired"


class EvidenceKind(StrEnum):
    """How a claim is known."""

    MEASURED = "measured"
    PUBLISHED = "published"
    REASONED = "reasoned"


class Value(BaseModel):
    """A measured quantity: ``number`` in ``unit`` (µs, ms/token, TB/s, ratio, %, …)."""

    model_config = _FROZEN

    number: float = Field(allow_inf_nan=False)
    unit: Annotated[str, StringConstraints(min_length=1, max_length=30)]


class Evidence(BaseModel):
    """One reason to believe a claim.

    ``measured`` needs hardware, software, date and a link to the record; ``published`` needs a reference;
    ``reasoned`` stands on its argument alone.
    """

    model_config = _FROZEN

    kind: Annotated[EvidenceKind, Field(strict=False)]
    what: Prose = Field(description="What was compared or observed, in one or two sentences.")
    hardware: Line | None = None
    software: Line | None = None
    measured_on: IsoDate | None = Field(default=None, description="ISO date, quoted.")
    baseline: Line | None = Field(default=None, description="What the value is compared with.")
    value: Value | None = None
    baseline_value: Value | None = None
    reference: Line | None = Field(default=None, description="Published source: a URL, owner/name#number or arXiv id.")
    kernel: Digest | None = Field(default=None, description="Digest of an admitted kernel in the store.")
    record: Line | None = Field(default=None, description="Benchmark record, a path under bench/results/.")

    @model_validator(mode="after")
    def _complete_for_its_kind(self) -> Evidence:
        if self.kind is EvidenceKind.PUBLISHED and not self.reference:
            raise ValueError("published evidence needs 'reference'")
        if self.kind is EvidenceKind.MEASURED:
            missing = [n for n in ("hardware", "software", "measured_on", "value") if getattr(self, n) is None]
            if missing:
                raise ValueError("measured evidence needs " + ", ".join(f"'{n}'" for n in missing))
            if not (self.kernel or self.record):
                raise ValueError("measured evidence needs a link: 'kernel' or 'record'")
        return self


class Effect(BaseModel):
    """Expected size of the effect as a speed-up ratio range (``1.05`` is 5 % faster, below 1 is a loss)."""

    model_config = _FROZEN

    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    of: Line = Field(description="What the ratio is of: the kernel's time, a decode step, tokens/s, an error.")

    @model_validator(mode="after")
    def _ordered(self) -> Effect:
        if self.high < self.low:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Related(BaseModel):
    """A typed link to another block."""

    model_config = _FROZEN

    id: PrincipleId
    relation: Literal["refines", "contradicts", "requires", "alternative"]
    note: Line | None = Field(default=None, description="For contradicts: which one wins where, and why both stand.")


class Principle(BaseModel):
    """One block of the knowledge base, ``principles/<family>/<slug>.yaml``."""

    model_config = _FROZEN

    id: PrincipleId = Field(description="<family>/<slug>; never changes, never reused.")
    title: Line = Field(description="One line, an imperative for a decision, a warning for a dead end.")
    kind: Annotated[Kind, Field(strict=False)]
    status: Annotated[Status, Field(strict=False)]
    version: int = Field(ge=1, description="Bumped with every change of meaning.")
    patterns: Annotated[tuple[ContractId, ...], Field(min_length=1, strict=False)] = Field(
        description="Contracts it speaks to."
    )
    when: When = Field(description="Conditions under which it holds; {} means always.")
    claim: Prose = Field(description="What to do, or what not to do, in imperative prose.")
    why: Prose = Field(description="The mechanism: why it works or fails.")
    effect: Effect | Literal["unknown"]
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1, strict=False)]
    retry_when: Prose | None = Field(default=None, description="Dead ends only: what would make another try worth it.")
    supersedes: Annotated[tuple[PrincipleId, ...], Field(strict=False)] = ()
    superseded_by: PrincipleId | None = None
    status_reason: Line | None = Field(default=None, description="Why it was superseded or retired.")
    related: Annotated[tuple[Related, ...], Field(strict=False)] = ()
    references: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    authors: Annotated[tuple[Line, ...], Field(min_length=1, strict=False)]
    created: IsoDate
    modified: IsoDate

    @property
    def family(self) -> str:
        """The folder part of the id."""
        return self.id.split("/", 1)[0]

    @model_validator(mode="after")
    def _consistent(self) -> Principle:
        if self.kind is Kind.DEAD_END and self.retry_when is None:
            raise ValueError("a dead end needs 'retry_when': what would have to change for another try")
        if self.kind is not Kind.DEAD_END and self.retry_when is not None:
            raise ValueError("'retry_when' belongs to dead ends only")
        if self.modified < self.created:
            raise ValueError(f"modified {self.modified} is before created {self.created}")
        if self.status is Status.SUPERSEDED and self.superseded_by is None:
            raise ValueError("a superseded block needs 'superseded_by'")
        if self.status in (Status.SUPERSEDED, Status.RETIRED) and self.status_reason is None:
            raise ValueError(f"a {self.status.value} block needs 'status_reason'")
        return self
