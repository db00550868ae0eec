"""What can go wrong between a candidate and its launch: one exception family, and the compiler's words as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a compiler rates what it says."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class CompilerMessage:
    """One message of a compiler.

    ``line`` and ``column`` count from 1 in the candidate's own source and are None where the message points
    elsewhere (the prelude, a header, the linker); ``file`` then says where. ``excerpt`` is the line of source the
    compiler quoted.
    """

    level: Level
    text: str
    line: int | None = None
    column: int | None = None
    file: str = ""
    code: str = ""
    excerpt: str = ""

    def __str__(self) -> str:
        place = f"line {self.line}" if self.line is not None else self.file or "compiler"
        return f"{place}: {self.level}: {self.text}"


class RuntimeFailure(Exception):  # noqa: N818 - the family's name; its members end in Error
    """Anything the runtime refuses or fails to do with a kernel. The message says what, where, and what to do."""


class MissingToolError(RuntimeFailure):
    """A compiler, a library or a device that is needed is not there. The message names what to install."""


class CompileError(RuntimeFailure):
    """The compiler rejected the source, or ran into a limit. ``messages`` holds what it said, ``log`` all of it."""

    def __init__(self, summary: str, messages: Sequence[CompilerMessage] = (), log: str = "") -> None:
        super().__init__(summary)
        self.messages = tuple(messages)
        self.log = log

    @property
    def errors(self) -> tuple[CompilerMessage, ...]:
        """The messages that made it fail."""
        return tuple(m for m in self.messages if m.level is Level.ERROR)


class LoadError(RuntimeFailure):
    """An image that compiled cannot be used: an entry is missing, or a launch asks for more than the device has."""


class LaunchError(RuntimeFailure):
    """Arguments that do not fit the contract, or a launch the device refused."""
