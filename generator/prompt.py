"""A prompt and the account of what went into it."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kb.dtype import DTypeName, TargetName
from kb.manifest import BlockRef
from kb.text import ContractId, Digest, PrincipleId

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)

# Words in pieces of at most five letters, digits in threes, marks and runs of white space alone: within about 15 % of
# what current tokenizers count on this kind of text, and the same number on every machine.
_PIECES = re.compile(r"[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9]|\n+")


def count_tokens(text: str) -> int:
    """Estimated tokens of ``text``, deterministic and independent of any provider's tokenizer."""
    return len(_PIECES.findall(text))


class Decision(BaseModel):
    """Why a block is in a prompt or not."""

    model_config = _FROZEN

    id: PrincipleId
    included: bool
    reason: str
    tokens: int = Field(description="What it adds, or would have added.")


class PromptManifest(BaseModel):
    """What went into a prompt, with digests, so that a kernel can be traced to the exact blocks its author saw."""

    model_config = _FROZEN

    contract: ContractId
    contract_version: int
    contract_digest: Digest
    target: TargetName
    arch: str | None
    dtype: DTypeName | None
    dims: Annotated[tuple[dict[str, int], ...], Field(strict=False)]
    blocks: Annotated[tuple[BlockRef, ...], Field(strict=False)]
    decisions: Annotated[tuple[Decision, ...], Field(strict=False)]
    prefix_tokens: int
    history_tokens: int
    budget: int
    prompt_digest: Digest
    estimate: Literal["pieces"] = "pieces"

    @property
    def dropped(self) -> tuple[Decision, ...]:
        """Blocks that hold here and were left out for the budget."""
        return tuple(d for d in self.decisions if not d.included and d.reason.startswith("dropped"))


class Prompt(BaseModel):
    """``prefix`` stays the same over the rounds of a search (a provider can cache it); ``history`` changes."""

    model_config = _FROZEN

    prefix: str
    history: str
    manifest: PromptManifest

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.prefix + self.history


def digest_of(text: str) -> str:
    """SHA-256 of a text, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
