"""C++ tokens as the compiler sees them: line splices joined, comments gone, directives marked.

Ways of spelling one thing as another (trigraphs, digraphs, universal character names, raw strings, escapes) are
problems, not features: a kernel needs none of them, and every other rule may then trust what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "number", "string", "char", "punct"]


@dataclass(frozen=True, slots=True)
class Token:
    """``line`` counts from 1. ``directive``: part of a preprocessor line, whose first token is ``#``."""

    kind: Kind
    text: str
    line: int
    directive: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Something the source may not contain. ``code`` is stable; ``line`` counts from 1."""

    code: str
    message: str
    line: int


_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER = re.compile(r"\.?[0-9](?:'?[0-9A-Za-z_]|[eEpP][+-]|\.)*")
_PUNCT = re.compile(
    r"<<<|>>>|<<=|>>=|\.\.\.|->\*|::|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|##|[^\s\w]"
)
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_DIGRAPH = re.compile(r"%:|<%|%>|<:(?!:)|:>")
_PREFIXED_LITERAL = re.compile(r'(?:u8|u|U|L)?R"|(?:u8|u|U|L)["\']')


def tokenize(source: str) -> tuple[list[Token], list[SourceProblem]]:
    """All tokens, and what is wrong with the text itself."""
    problems: list[SourceProblem] = []
    text, lines = _join_lines(source)
    for match in _TRIGRAPH.finditer(text):
        problems.append(SourceProblem("forbidden-spelling", f"trigraph '{match[0]}'", lines[match.start()]))
    tokens = list(_tokens(text, lines, problems))
    return tokens, problems


def _join_lines(source: str) -> tuple[str, list[int]]:
    """The text without line splices, and the line every character came from."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    kept: list[str] = []
    lines: list[int] = []
    line, i = 1, 0
    splice = re.compile(r"\\[ \t]*\n")
    while i < len(source):
        if source[i] == "\\" and (match := splice.match(source, i)):
            line += 1
            i = match.end()
            continue
        kept.append(source[i])
        lines.append(line)
        if source[i] == "\n":
            line += 1
        i += 1
    lines.append(line)
    return "".join(kept), lines


def _tokens(text: str, lines: list[int], problems: list[SourceProblem]) -> Iterator[Token]:
    i, start_of_line, directive = 0, True, False

    def problem(code: str, message: str) -> None:
        problems.append(SourceProblem(code, message, lines[i]))

    while i < len(text):
        here = text[i]
        if here == "\n":
            start_of_line, directive = True, False
            i += 1
            continue
        if here.isspace():
            i += 1
            continue
        if text.startswith("//", i):
            i = _find(text, "\n", i)
            continue
        if text.startswith("/*", i):
            end = text.find("*/", i + 2)
            if end < 0:
                problem("forbidden-spelling", "a comment that does not end")
                return
            start_of_line = start_of_line and "\n" not in text[i:end]
            i = end + 2
            continue
        if not here.isascii():
            problem("forbidden-spelling", f"the character {here!r} outside a comment")
            i += 1
            continue
        if match := _PREFIXED_LITERAL.match(text, i):
            problem("forbidden-spelling", f"a literal with the prefix {match[0][:-1]}")
            i = match.end() - 1
        if text[i] in "\"'":
            literal = _literal(text, i)
            if literal is None:
                problem("forbidden-spelling", "a literal that does not end on its line")
                return
            yield Token("string" if text[i] == '"' else "char", literal, lines[i], directive)
            i += len(literal)
        elif match := _NAME.match(text, i):
            if "$" in match[0]:
                problem("forbidden-spelling", f"'$' in the name '{match[0]}'")
            yield Token("name", match[0], lines[i], directive)
            i = match.end()
        elif match := _NUMBER.match(text, i):
            yield Token("number", match[0], lines[i], directive)
            i = match.end()
        else:
            if match := _DIGRAPH.match(text, i):
                problem("forbidden-spelling", f"digraph '{match[0]}'")
            if here == "\\":
                problem("forbidden-spelling", "a backslash outside a literal (universal character name)")
            if here == "#" and start_of_line:
                directive = True
            match = _PUNCT.match(text, i)
            found = match[0] if match else here
            yield Token("punct", found, lines[i], directive, first=start_of_line and here == "#")
            i += len(found)
        start_of_line = False


def _literal(text: str, start: int) -> str | None:
    """The literal that starts at ``start``, quotes included; None when the line ends first."""
    quote, i = text[start], start + 1
    while i < len(text) and text[i] != "\n":
        if text[i] == "\\":
            i += 2
        elif text[i] == quote:
            return text[start : i + 1]
        else:
            i += 1
    return None


def _find(text: str, what: str, start: int) -> int:
    found = text.find(what, start)
    return len(text) if found < 0 else found
