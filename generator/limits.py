"""What a search may spend, and what it has spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from generator.providers.protocol import Usage

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(BaseModel):
    """Upper bounds; None is no bound. ``seconds`` counts time in which the search ran, over all its resumptions."""

    model_config = _FROZEN

    tokens: int | None = Field(default=None, gt=0)
    usd: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)


class Spent(BaseModel):
    """Totals over the journalled replies. ``usd`` is None once a reply came without a known price."""

    model_config = _FROZEN

    replies: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


def spent_in(events: Iterable[Mapping[str, Any]]) -> Spent:
    """Sum a journal's replies; ``seconds`` is the running time the last event knew of."""
    total = Spent()
    for event in events:
        total = total.model_copy(update={"seconds": max(total.seconds, float(event.get("elapsed", 0.0)))})
        if event["event"] != "reply":
            continue
        usage = Usage.model_validate(event["completion"].get("usage", {}))
        known = total.usd is not None and usage.cost_usd is not None
        total = total.model_copy(
            update={
                "replies": total.replies + 1,
                "input_tokens": total.input_tokens + usage.input_tokens,
                "cached_input_tokens": total.cached_input_tokens + usage.cached_input_tokens,
                "output_tokens": total.output_tokens + usage.output_tokens,
                "usd": (total.usd or 0.0) + (usage.cost_usd or 0.0) if known else None,
            }
        )
    return total


def exceeded(limits: Limits, spent: Spent) -> str | None:
    """The limit that is reached, in words; None while there is room."""
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"token limit reached: {spent.tokens} of {limits.tokens}"
    if limits.usd is not None and spent.usd is not None and spent.usd >= limits.usd:
        return f"money limit reached: {spent.usd:.2f} of {limits.usd:.2f} USD"
    if limits.seconds is not None and spent.seconds >= limits.seconds:
        return f"time limit reached: {spent.seconds:.0f} of {limits.seconds:.0f} s"
    return None
