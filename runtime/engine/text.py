"""The text of one request as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.engine.tokenizer import Detokenizer, Tokenizer


class StopStrings:
    """Watches a stream of text for stop strings and holds back what may be the start of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string was met, which ends the text before it."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """Text held back, when nothing will follow."""
        shown, self._held = self._held, ""
        return shown


class TextStream:
    """Turns tokens into text that can be shown. Without a tokenizer there is none."""

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt) if tokenizer is not None else None
        self._stop = StopStrings(stop)
        self.text = ""

    def add(self, token: int, *, hidden: bool, last: bool) -> tuple[str, bool]:
        """Text to show for ``token`` and whether it completed a stop string.

        ``hidden``: the token ends the text and is not part of it. ``last``: nothing will follow, so nothing is held
        back any longer.
        """
        if self._detokenizer is None:
            return "", False
        new = "" if hidden else self._detokenizer.add(token)
        if last:
            new += self._detokenizer.flush()
        shown, met = self._stop.add(new)
        if last and not met:
            shown += self._stop.flush()
        self.text += shown
        return shown, met


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that starts ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
