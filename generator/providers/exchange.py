"""A folder as provider: prompts are written out, replies are read in, by whoever answers them.

``<key>.prompt.md`` appears whole (written aside, then renamed). The author writes ``<key>.reply.md``; a reply is read
once its first line states which prompt and which model it is from, so that a reply to an older prompt, or half a
reply, is never taken for the answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from generator.providers.protocol import Ask, Completion, PendingError, ProviderError
from kb.store.durable import replace_file

_HEADER = re.compile(r"\A<!-- reply to ([0-9a-f]{12}) by (.{1,80}?) -->[ \t]*\r?\n")
_END = "<!-- end of reply -->"

README = """# How to answer

Each `NAME.prompt.md` in this folder is one self-contained question. Its answer goes into `NAME.reply.md` beside it:

1. The first line states what is answered and by whom:
   `<!-- reply to PROMPT by MODEL -->`, where PROMPT is the twelve digits on the first line of the prompt and MODEL is
   the name of the model or person that wrote the answer.
2. Then the answer in the form that the prompt asks for.
3. The last line is `<!-- end of reply -->`, so that a half-written file is never taken for a whole one.

Use nothing but the prompt. Answers are compiled, checked and timed by machine.
"""


class Exchange:
    """Provider over ``folder``. ``wait`` seconds are given for each answer; 0 looks once."""

    name = "exchange"

    def __init__(
        self,
        folder: Path,
        *,
        wait: float = 0.0,
        poll: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder = folder
        self._wait = wait
        self._poll = poll
        self._clock = clock
        self._sleep = sleep

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        """Publish the prompt (once) and wait for its reply. Raises PendingError, ProviderError."""
        self._publish(question)
        until = self._clock() + self._wait
        while (reply := self._read(question)) is None:
            if self._clock() >= until:
                raise PendingError(
                    f"no reply yet to {self._prompt(question)}; write it to {self._reply(question).name} "
                    "and run the same command again"
                )
            self._sleep(self._poll)
        if on_text is not None:
            on_text(reply.text)
        return reply

    def _publish(self, question: Ask) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        readme = self.folder / "README.md"
        if not readme.exists():
            replace_file(readme, README.encode())
        content = f"<!-- prompt {question.prompt_digest[:12]} -->\n{question.text}"
        path = self._prompt(question)
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            replace_file(path, content.encode())

    def _read(self, question: Ask) -> Completion | None:
        path = self._reply(question)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise ProviderError(f"{path}: not UTF-8; write the reply again") from None
        if not text.strip():
            raise ProviderError(f"{path}: the reply is empty; write it, or remove the file to keep waiting")
        if _END not in text:
            return None
        header = _HEADER.match(text)
        if header is None:
            raise ProviderError(f"{path}:1: the first line must be '<!-- reply to PROMPT by MODEL -->'")
        if header[1] != question.prompt_digest[:12]:
            raise ProviderError(
                f"{path}:1: this answers prompt {header[1]}, not {question.prompt_digest[:12]}; "
                "answer the prompt that lies beside it"
            )
        body = text[header.end() :].rsplit(_END, 1)[0]
        return Completion(text=body, model=header[2].strip())

    def _prompt(self, question: Ask) -> Path:
        return self.folder / f"{question.key}.prompt.md"

    def _reply(self, question: Ask) -> Path:
        return self.folder / f"{question.key}.reply.md"
