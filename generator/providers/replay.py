"""Recorded replies as provider, so that tests and the demo need neither network nor key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from generator.providers.protocol import Ask, Completion, ProviderError


class Replay:
    """Answers by key from recorded ``reply`` events. With ``strict`` the prompt must be the recorded one too."""

    name = "replay"

    def __init__(self, replies: Mapping[str, tuple[str, Completion]], *, strict: bool = False) -> None:
        self._replies = replies
        self._strict = strict

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], *, strict: bool = False) -> Replay:
        """From a transcript's events."""
        replies = {
            e["key"]: (e["prompt_digest"], Completion.model_validate(e["completion"]))
            for e in events
            if e.get("event") == "reply"
        }
        return cls(replies, strict=strict)

    @classmethod
    def from_file(cls, path: Path, *, strict: bool = False) -> Replay:
        """From a ``transcript.jsonl``. Raises ProviderError when it cannot be read."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return cls.from_events([json.loads(line) for line in lines], strict=strict)
        except (OSError, ValueError, KeyError) as error:
            raise ProviderError(f"{path}: not a readable transcript ({error})") from None

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        """The recorded reply. Raises ProviderError where none was recorded."""
        if question.key not in self._replies:
            known = ", ".join(sorted(self._replies)) or "none"
            raise ProviderError(f"no recorded reply for {question.key} (recorded: {known})")
        digest, completion = self._replies[question.key]
        if self._strict and digest != question.prompt_digest:
            raise ProviderError(
                f"the recorded reply for {question.key} answers prompt {digest[:12]}, "
                f"this one is {question.prompt_digest[:12]}"
            )
        if on_text is not None:
            on_text(completion.text)
        return completion
