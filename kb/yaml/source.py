"""Bytes to text, and everything that must not be in a file before a parser sees it.

A YAML parser reports a stray control character by byte position, drops a byte order mark and rewrites line
ends without a word. So the text is looked at first, character by character, and every offence gets its place.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from kb.place import MAX_BYTES as MAX_BYTES  # part of this module too
from kb.place import read_regular_file

# A file full of offences (a binary renamed to .yaml) says so a few times, not a million times.
MAX_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a text at ``offset`` (characters from its start; None: the file as a whole)."""

    code: str
    offset: int | None
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Turns offsets into lines and columns, both counted from 1 in characters."""

    starts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Lines:
        return cls((0, *(m.end() for m in re.finditer("\n", text))))

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def start(self, line: int) -> int:
        """Offset of the first character of ``line``."""
        return self.starts[line - 1]


def read_bytes(path: Path) -> tuple[bytes, list[Problem]]:
    """The file's bytes, or a problem. Never blocks on a pipe and never reads more than the limit."""
    try:
        data = read_regular_file(path, MAX_BYTES + 1)
    except OSError as error:
        return b"", [Problem("AC001", None, f"cannot be read: {error.strerror or error}")]
    return data, check_size(data)


def check_size(data: bytes) -> list[Problem]:
    """Refuse a file too large to be one entry."""
    if len(data) <= MAX_BYTES:
        return []
    return [Problem("AC009", None, f"larger than {MAX_BYTES // 1024} KiB", "split it; an entry is a page of prose")]


def decode(data: bytes) -> tuple[str, list[Problem]]:
    """UTF-8 text; undecodable bytes are replaced, so that the rest of the file keeps its places."""
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError as error:
        offset = len(data[: error.start].decode("utf-8", "replace"))
        return data.decode("utf-8", "replace"), [
            Problem("AC002", offset, f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        ]


# One pass with a compiled class finds a suspect; only suspects are looked at one by one.
_SUSPECT = re.compile(
    "[^\n\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff\u0370-\u03ff\u0410-\u044f\u2010-\u2015\u2018-\u201f\u2020-\u2023\u2026"
    "\u2030-\u205e\u2070-\u209c\u20a0-\u20bf\u2100-\u23ff\u2500-\u27ff]"
)


def forbidden_characters(text: str) -> list[Problem]:
    """Every character that a reader cannot see or that a YAML writer would change."""
    found: list[Problem] = []
    seen: dict[str, int] = {}
    for match in _SUSPECT.finditer(text):
        problem = _judge(text, match.start())
        if problem is None:
            continue
        seen[problem.code] = seen.get(problem.code, 0) + 1
        if seen[problem.code] <= (1 if problem.code in ("AC003", "AC004") else MAX_REPEATS):
            found.append(problem)
    return found


def _judge(text: str, offset: int) -> Problem | None:
    char = text[offset]
    point = ord(char)
    name = f"U+{point:04X} {unicodedata.name(char, '')}".rstrip()
    category = unicodedata.category(char)
    if char == "\ufeff" and offset == 0:
        return Problem("AC003", offset, "starts with a byte order mark", "save the file as UTF-8 without BOM")
    if char == "\r":
        return Problem("AC004", offset, "line ends with a carriage return", "use LF line ends")
    if char == "\t":
        return Problem("AC005", offset, "tab character", "use spaces")
    if char in "\u0085\u2028\u2029":
        return Problem("AC007", offset, f"line separator {name}", "use an ordinary line end")
    if category in ("Cc", "Cs", "Cn", "Co") or (point & 0xFFFE) == 0xFFFE:
        return Problem("AC006", offset, f"control or unassigned character {name}", "remove it")
    if category in ("Cf", "Zs") or point in (0x034F, 0x115F, 0x1160, 0x3164, 0xFFA0):
        return Problem("AC008", offset, f"invisible character {name}", "remove it, or use an ordinary space")
    return None
