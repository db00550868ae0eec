"""Text to tokens and back, through the checkpoint's own tokenizer.

Going back is incremental: a piece of text is only handed out when it can no longer change, so a character whose bytes
are spread over several tokens comes out whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from runtime.models.spec import ModelError

# What decoders print for bytes that are no character yet.
_BROKEN = "\ufffd"
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# Longest run of tokens that may fail to make a character: four bytes is UTF-8's longest, so this is generous.
_MOST_PENDING = 16


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class CheckpointTokenizer:
    """The tokenizer in a checkpoint folder. Raises ModelError when it cannot be loaded."""

    def __init__(self, model_dir: Path) -> None:
        if not any((model_dir / name).exists() for name in _FILES):  # transformers would make an empty one up
            raise ModelError(f"{model_dir}: the tokenizer cannot be loaded (none of {', '.join(_FILES)} is there)")
        from transformers import AutoTokenizer  # seconds to import

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
        except Exception as error:  # transformers raises whatever it met
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(f"{model_dir}: the tokenizer cannot be loaded ({first_line})") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens the model expects around it."""
        return [int(i) for i in self._tokenizer.encode(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` without special tokens, spaces kept as they are."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the checkpoint's chat template. Raises ModelError without one."""
        if not self._tokenizer.chat_template:
            raise ModelError("this checkpoint has no chat template; give the prompt as plain text")
        turns = [dict(message) for message in messages]
        text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]


class Detokenizer:
    """Text of one request's output, token by token.

    A few tokens before the new ones are decoded along with them, because what a token looks like may depend on its
    neighbours (a leading space, say).
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], context: int = 6) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-context:])
        self._start = 0  # tokens from here on are decoded for context
        self._read = len(self._tokens)  # tokens before this one have been handed out
        self._after_prompt = True

    def add(self, token: int) -> str:
        """Text that ``token`` settled, often empty while a character is incomplete."""
        self._tokens.append(token)
        return self._advance(flush=len(self._tokens) - self._read > _MOST_PENDING)

    def flush(self) -> str:
        """What is left when no token will follow; bytes that never made a character become U+FFFD."""
        return self._advance(flush=True)

    def _advance(self, flush: bool) -> str:
        if self._read == len(self._tokens):
            return ""
        before = self._tokenizer.decode(self._tokens[self._start : self._read])
        if self._after_prompt:  # the prompt may end inside a character, which then belongs to the output
            before = before.rstrip(_BROKEN)
        now = self._tokenizer.decode(self._tokens[self._start :])
        if now.endswith(_BROKEN) and not flush:
            return ""
        self._start, self._read, self._after_prompt = self._read, len(self._tokens), False
        return now[len(before) :]
