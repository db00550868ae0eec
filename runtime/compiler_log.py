"""Compilers' logs, parsed: NVRTC, ptxas, g++ and clang++ into messages and resources.

Every parser takes the name the candidate's source was given by ``#line`` (``kernel.cu`` or ``kernel.cpp``), so that
a message about it carries the candidate's own line and a message about anything else carries none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runtime.errors import CompilerMessage, Level
from runtime.image import EntryResources

MAX_MESSAGES = 50

_LEVELS = {
    "error": Level.ERROR,
    "fatal error": Level.ERROR,
    "catastrophic error": Level.ERROR,
    "internal error": Level.ERROR,
    "internal compiler error": Level.ERROR,
    "warning": Level.WARNING,
    "remark": Level.NOTE,
    "note": Level.NOTE,
}
_LEVEL = "|".join(sorted(_LEVELS, key=len, reverse=True))
_EDG = re.compile(rf"^(?P<file>.+?)\((?P<line>\d+)\): (?P<level>{_LEVEL})(?: #(?P<code>[\w-]+))?: (?P<text>.*)$")
_GNU = re.compile(rf"^(?P<file>[^\s:][^:]*):(?P<line>\d+)(?::(?P<column>\d+))?: (?P<level>{_LEVEL}): (?P<text>.*)$")
_GNU_CODE = re.compile(r" \[(-W[\w=+-]+)\]$")
_LINKER = re.compile(r"^(?:.*/)?(?:ld|collect2)\S*: (?P<text>.*)$|^.*: (?P<undefined>undefined reference to .*)$")
_DRIVER = re.compile(
    rf"^(?:\S*/)?(?P<tool>[\w+.-]+): (?:(?P<level>{_LEVEL}): (?P<text>.*)|(?P<memory>out of memory.*))$"
)
_EXHAUSTED = re.compile(r"^virtual memory exhausted.*$")
_LINKER_NOISE = re.compile(r"warning:|: in function |returned \d+ exit status")
_PTXAS = re.compile(r"^ptxas\s+(?P<level>error|fatal|warning)\s*:\s*(?P<text>.*)$")
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared_bytes": re.compile(r"(\d+)(?:\+\d+)? bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
}


def parse_nvrtc(log: str, own: str) -> tuple[CompilerMessage, ...]:
    """Messages of NVRTC and of the ptxas inside it, errors first, at most MAX_MESSAGES."""
    return _ordered(_nvrtc_messages(log.replace("\0", "").splitlines(), own))


def parse_gnu(log: str, own: str) -> tuple[CompilerMessage, ...]:
    """Messages of g++, clang++ and the linker behind them, errors first, at most MAX_MESSAGES."""
    return _ordered(_gnu_messages(log.splitlines(), own))


def quote_source(messages: Sequence[CompilerMessage], text: str, own: str) -> tuple[CompilerMessage, ...]:
    """``messages`` with the line they point at, for compilers that cannot open the file ``#line`` names."""
    _, _, source = text.partition(f'#line 1 "{own}"\n')
    lines = source.splitlines()
    return tuple(
        replace(m, excerpt=lines[m.line - 1].strip()) if m.line and not m.excerpt and m.line <= len(lines) else m
        for m in messages
    )


def parse_ptxas(log: str) -> Mapping[str, EntryResources]:
    """Resources by entry from ptxas' verbose output; empty when the log has none."""
    found: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.replace("\0", "").splitlines():
        if match := _ENTRY.search(line):
            entry = function = match["name"]
            found[entry] = {}
        elif match := _PROPERTIES.search(line):
            function = match["name"]
        elif entry and (function == entry or "Used " in line):
            # Frame sizes of a called function come under its own name; the registers line is always the entry's.
            found[entry] |= {key: int(m[1]) for key, pattern in _NUMBERS.items() if (m := pattern.search(line))}
    return {name: EntryResources(**numbers) for name, numbers in found.items() if "registers" in numbers}


def _nvrtc_messages(lines: list[str], own: str) -> Iterator[CompilerMessage]:
    for i, line in enumerate(lines):
        if match := _EDG.match(line):
            excerpt = lines[i + 1] if i + 1 < len(lines) and lines[i + 1].startswith("  ") else ""
            caret = lines[i + 2] if excerpt and i + 2 < len(lines) else ""
            column = caret.index("^") - 1 if caret.strip() == "^" else None
            yield _message(match, own, excerpt.strip(), column, match["code"] or "")
        elif match := _PTXAS.match(line):
            level = Level.WARNING if match["level"] == "warning" else Level.ERROR
            yield CompilerMessage(level, match["text"], file="ptxas")


def _gnu_messages(lines: list[str], own: str) -> Iterator[CompilerMessage]:
    for i, line in enumerate(lines):
        if match := _GNU.match(line):
            quoted = re.match(r"^\s*\d+ \| ?(.*)$", lines[i + 1]) if i + 1 < len(lines) else None
            excerpt = quoted[1] if quoted else ""
            code = _GNU_CODE.search(match["text"])
            column = int(match["column"]) if match["column"] else None
            yield _message(match, own, excerpt.strip(), column, code[1] if code else "")
        elif match := _EXHAUSTED.match(line):
            yield CompilerMessage(Level.ERROR, line, file="compiler")
        elif (match := _DRIVER.match(line)) and not _LINKER_NOISE.search(line):
            level = _LEVELS[match["level"]] if match["level"] else Level.ERROR
            yield CompilerMessage(level, match["text"] or match["memory"], file=match["tool"])
        elif (match := _LINKER.match(line)) and not _LINKER_NOISE.search(line):
            yield CompilerMessage(Level.ERROR, match["text"] or match["undefined"], file="linker")


def _message(match: re.Match[str], own: str, excerpt: str, column: int | None, code: str) -> CompilerMessage:
    mine = match["file"].rsplit("/", 1)[-1] == own
    return CompilerMessage(
        level=_LEVELS[match["level"]],
        text=_GNU_CODE.sub("", match["text"]).strip(),
        line=int(match["line"]) if mine else None,
        column=column if mine else None,
        file=own if mine else f"{match['file'].rsplit('/', 1)[-1]}:{match['line']}",
        code=code,
        excerpt=excerpt,
    )


def _ordered(messages: Iterator[CompilerMessage]) -> tuple[CompilerMessage, ...]:
    order = list(Level)
    unique = list(dict.fromkeys(messages))
    return tuple(sorted(unique, key=lambda m: order.index(m.level)))[:MAX_MESSAGES]
