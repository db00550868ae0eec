"""One finding about a file: what, where, how bad, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``error`` fails a check, ``warning`` fails it only under ``--strict``, ``info`` never does."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic:
    """A finding. ``line`` and ``column`` count from 1; 0 means the whole file. Sorts by place, then code."""

    path: str
    line: int
    column: int
    code: str
    message: str
    severity: Severity = Severity.ERROR
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        tail = f" ({self.fix})" if self.fix else ""
        return f"{place}: {self.severity} {self.code}: {self.message}{tail}"
