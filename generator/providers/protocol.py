"""The one thing a provider does: answer a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Ask:
    """One question. ``key`` names it within a search and stays the same when the search is resumed.

    ``prefix`` is the part that does not change between the rounds of a search, so that a provider may cache it.
    """

    key: str
    prefix: str
    history: str
    prompt_digest: str

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.prefix + self.history


class Usage(BaseModel):
    """Tokens as the provider counted them; 0 where it does not say. ``cost_usd`` is None where no price is known."""

    model_config = _FROZEN

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class Completion(BaseModel):
    """A reply. ``model`` is what the provider says answered, not what was asked for."""

    model_config = _FROZEN

    text: str
    model: str
    stop: Literal["end", "truncated", "refused"] = "end"
    usage: Usage = Usage()


class ProviderError(Exception):
    """A question that got no answer; the message says why and what to do. The search's state is kept."""


class PendingError(ProviderError):
    """No answer yet; running the same command again goes on from here."""


class Provider(Protocol):
    """Answers prompts. ``ask`` may be called from several threads at once."""

    @property
    def name(self) -> str:
        """What a manifest records."""
        ...

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        """The reply to ``question``; ``on_text`` sees it as it streams in. Raises ProviderError."""
        ...


@runtime_checkable
class BatchProvider(Protocol):
    """Answers many questions at once, later: ``submit`` names the batch, ``collect`` fetches it."""

    def submit(self, questions: Mapping[str, Ask]) -> str:
        """Send the questions; returns the batch's id. Raises ProviderError."""
        ...

    def collect(self, batch: str, *, wait: float = 0.0) -> Mapping[str, Completion]:
        """Replies by key. Raises PendingError while the batch runs, ProviderError."""
        ...
