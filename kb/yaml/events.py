"""The parser's events, from C where ruamel's extension is installed, else from ruamel's own Python.

The C parser is about twenty times faster and reads nearly every good file. A file it refuses is read again by the
Python parser, which has the last word, so what an author sees does not depend on what is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

try:
    from _ruamel_yaml import CParser
except ImportError:  # no wheel for this platform
    CParser = None

HAS_C = CParser is not None


class SyntaxProblem(Exception):  # noqa: N818 - a finding about a file, not a fault of ours
    """The text is not YAML. ``offset`` is in characters."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def events(text: str, *, pure: bool) -> Iterator[Any]:
    """Events in order, read as the caller asks for them. Raises SyntaxProblem where the text stops being YAML."""
    try:
        if CParser is None or pure:
            yield from YAML(typ="safe", pure=True).parse(text)
        else:
            parser = CParser(text)
            while parser.check_event():
                yield parser.get_event()
    except YAMLError as error:
        raise _problem(error, text) from None
    except (ValueError, IndexError, AttributeError, TypeError, AssertionError, RecursionError) as error:
        raise SyntaxProblem(f"not YAML ({type(error).__name__} in the parser)", 0) from None


def _problem(error: YAMLError, text: str) -> SyntaxProblem:
    if isinstance(error, ReaderError):
        return SyntaxProblem("a character that YAML does not allow", min(int(error.position), len(text)))
    if not isinstance(error, MarkedYAMLError):
        return SyntaxProblem("not YAML", 0)
    message = " ".join(str(part) for part in (error.context, error.problem) if part)
    # What is never finished is best shown where it begins, not where the parser gave up.
    opened = any(needle in message for needle in _OPENED)
    mark = (error.context_mark if opened else None) or error.problem_mark or error.context_mark
    offset = min(int(mark.index), len(text)) if mark is not None else 0
    return SyntaxProblem(_plainly(message), offset)


_OPENED = ("could not find expected ':'", "unexpected end of stream", "expected ',' or ']'", "expected ',' or '}'")
_PLAINLY = (
    ("mapping values are not allowed", "a second ': ' on this line; quote the text, or start a new line"),
    ("could not find expected ':'", "a key without its ':'"),
    ("did not find expected key", "the indentation does not fit, or a quote or bracket is missing"),
    ("expected <block end>", "the indentation does not fit, or a quote or bracket is missing"),
    ("found unexpected end of stream", "a quote is opened and never closed"),
    ("expected ',' or ']'", "a '[' without its ']' or a missing ','"),
    ("expected ',' or '}'", "a '{' without its '}' or a missing ','"),
    ("cannot start any token", "this character cannot start a value; quote the text"),
    ("unknown escape", "unknown escape in a double-quoted text; double the backslash or use single quotes"),
    ("sequence entries are not allowed", "a list cannot start here; put it on its own line"),
    ("expected alphabetic or numeric", "'&' or '*' starts a YAML anchor or alias; quote the text"),
    ("block scalar", "'|' or '>' starts a block text and is followed by something else"),
    ("undefined tag handle", "'!' starts a YAML tag; quote the text"),
)


def _plainly(message: str) -> str:
    for needle, text in _PLAINLY:
        if needle in message:
            return text
    return message or "not YAML"
