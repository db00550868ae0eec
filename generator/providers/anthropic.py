"""The Messages API as provider, through the official client.

The stable prefix carries a cache mark, so that rounds after the first pay for it at the cached rate. The client
retries what fails before a reply begins (429, 5xx, overload, connection); a stream that breaks in the middle is
retried here. The key comes from the environment alone and is cut out of every error text.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import httpx2
from anthropic.types import Message
from anthropic.types.messages import MessageBatchIndividualResponse

from generator.providers.protocol import Ask, Completion, PendingError, ProviderError, Usage

KEY_VARIABLE = "ANTHROPIC_API_KEY"
DEFAULT_MODEL = "claude-opus-5-5"
Thinking = Literal["adaptive", "off"] | int

_RETRIED = (
    anthropic.APIConnectionError,
    anthropic.RateLimitError,
    anthropic.InternalServerError,
    httpx2.TransportError,
)
_KEY_SHAPE = re.compile(r"sk-ant-[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a million tokens."""

    input: float
    cached_input: float
    output: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How replies are asked for. ``thinking``: ``adaptive``, ``off`` or a budget in tokens."""

    model: str = DEFAULT_MODEL
    max_tokens: int = 64_000
    thinking: Thinking = "adaptive"
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    price: Price | None = None
    retries: int = 5
    backoff: float = 1.0


class Anthropic:
    """Provider over a client. ``ask`` may be called from several threads."""

    name = "anthropic"

    def __init__(
        self, client: anthropic.Anthropic, settings: Settings, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._settings = settings
        self._sleep = sleep

    @classmethod
    def from_environment(cls, settings: Settings | None = None) -> Anthropic:
        """With the key in ANTHROPIC_API_KEY. Raises ProviderError when it is missing."""
        chosen = settings or Settings()
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key:
            raise ProviderError(f"{KEY_VARIABLE} is not set; export a key, or use --provider exchange:FOLDER")
        return cls(anthropic.Anthropic(api_key=key, max_retries=chosen.retries), chosen)

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        """Stream one reply. Raises ProviderError once retries are used up or the request itself is refused."""
        for attempt in range(self._settings.retries + 1):
            try:
                with self._client.messages.stream(**self._request(question)) as stream:
                    for text in stream.text_stream:
                        if on_text is not None:
                            on_text(text)
                    final = stream.get_final_message()
                    if final.stop_reason is None:
                        # The connection ended without the closing event: half a reply is no reply.
                        raise httpx2.RemoteProtocolError("the stream ended early")
                    return self._completion(final)
            except _RETRIED as error:
                if attempt == self._settings.retries:
                    raise ProviderError(f"no reply after {attempt + 1} attempts: {_clean(error)}") from None
                self._sleep(self._settings.backoff * 2**attempt)
            except anthropic.APIStatusError as error:
                if getattr(error, "status_code", 0) in (200, 529) and attempt < self._settings.retries:
                    # An error event inside a stream that began well: overload arrives this way too.
                    self._sleep(self._settings.backoff * 2**attempt)
                    continue
                raise ProviderError(self._explain(error)) from None
            except (anthropic.AnthropicError, ValueError) as error:
                raise ProviderError(f"the reply could not be read: {_clean(error)}") from None
        raise AssertionError("the loop returns or raises")

    def submit(self, questions: Mapping[str, Ask]) -> str:
        """Send all questions as one message batch; returns its id. Raises ProviderError."""
        requests: list[Any] = [{"custom_id": key, "params": self._request(q)} for key, q in sorted(questions.items())]
        try:
            return self._client.messages.batches.create(requests=requests).id
        except anthropic.AnthropicError as error:
            raise ProviderError(f"the batch was not accepted: {_clean(error)}") from None

    def collect(self, batch: str, *, wait: float = 0.0, poll: float = 30.0) -> dict[str, Completion]:
        """Replies of a batch by key. Raises PendingError while it runs, ProviderError when an answer failed."""
        until = time.monotonic() + wait
        try:
            while self._client.messages.batches.retrieve(batch).processing_status != "ended":
                if time.monotonic() >= until:
                    raise PendingError(f"batch {batch} is still running; run the same command again later")
                self._sleep(min(poll, max(0.0, until - time.monotonic())))
            results = list(self._client.messages.batches.results(batch))
        except anthropic.AnthropicError as error:
            raise ProviderError(f"batch {batch}: {_clean(error)}") from None
        return {r.custom_id: self._batch_completion(batch, r) for r in results}

    def _batch_completion(self, batch: str, response: MessageBatchIndividualResponse) -> Completion:
        if response.result.type == "succeeded":
            return self._completion(response.result.message)
        raise ProviderError(f"batch {batch}: {response.custom_id} {response.result.type}; run again to ask once more")

    def _request(self, question: Ask) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": question.prefix, "cache_control": {"type": "ephemeral"}}
        ]
        if question.history.strip():
            blocks.append({"type": "text", "text": question.history})
        request: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": self._settings.max_tokens,
            "messages": [{"role": "user", "content": blocks}],
        }
        thinking = self._settings.thinking
        if isinstance(thinking, int):
            request["thinking"] = {"type": "enabled", "budget_tokens": thinking}
        elif thinking == "adaptive":
            request["thinking"] = {"type": "adaptive"}
        if self._settings.effort is not None:
            request["output_config"] = {"effort": self._settings.effort}
        return request

    def _completion(self, message: Message) -> Completion:
        text = "".join(block.text for block in message.content if block.type == "text")
        stop: Literal["end", "truncated", "refused"] = "end"
        if message.stop_reason in ("max_tokens", "model_context_window_exceeded"):
            stop = "truncated"
        elif message.stop_reason == "refusal":
            stop = "refused"
        return Completion(text=text, model=message.model, stop=stop, usage=self._usage(message))

    def _usage(self, message: Message) -> Usage:
        cached = message.usage.cache_read_input_tokens or 0
        fresh = message.usage.input_tokens + (message.usage.cache_creation_input_tokens or 0)
        price = self._settings.price
        cost = None
        if price is not None:
            parts = (fresh * price.input, cached * price.cached_input, message.usage.output_tokens * price.output)
            cost = sum(parts) / 1e6
        return Usage(
            input_tokens=fresh + cached,
            cached_input_tokens=cached,
            output_tokens=message.usage.output_tokens,
            cost_usd=cost,
        )

    def _explain(self, error: anthropic.APIStatusError) -> str:
        if isinstance(error, anthropic.AuthenticationError | anthropic.PermissionDeniedError):
            return f"the key in {KEY_VARIABLE} was not accepted: {_clean(error)}"
        if isinstance(error, anthropic.NotFoundError):
            return f"unknown model '{self._settings.model}'; choose another with --model"
        return _clean(error)


def _clean(error: Exception) -> str:
    """One line without anything that looks like a key."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    text = " ".join(str(error).split())[:300]
    if key:
        text = text.replace(key, "[key]")
    return _KEY_SHAPE.sub("[key]", text)
