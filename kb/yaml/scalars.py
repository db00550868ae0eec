"""What an unquoted word means: the YAML 1.2 core schema, minus everything two readers disagree about.

``yes``, ``010``, ``1e3`` and ``1:30`` are one thing to a YAML 1.1 reader and another to a 1.2 reader; editors,
CI tools and other programs read our files too. What is ambiguous is refused, so everybody reads the same value.
"""

from __future__ import annotations

import math
import re
from datetime import date

MAX_DIGITS = 18

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?", re.DOTALL)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
# The union of what YAML 1.1 and 1.2 readers take for a number.
_NUMBER_TO_SOMEBODY = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO]?[0-9_]+|0[bB][01_]+|[0-9_]+(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|(?:[0-9_]+(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?)"
)
_WORDS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"), "true"),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"), "false"),
    **dict.fromkeys(("null", "Null", "NULL", "~"), "null"),
    "=": "=",
    "<<": "<<",
}
_MEANT: dict[str, bool | None] = {"true": True, "false": False, "null": None}

Plain = str | int | float | bool | None


class Ambiguous(ValueError):  # noqa: N818 - a finding about a file, not a fault of ours
    """A plain scalar that is refused. ``code`` says which rule, ``fix`` what to write instead."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix


def resolve_plain(text: str) -> Plain:
    """Value of an unquoted scalar that is not empty. Raises Ambiguous."""
    first = text[0]
    if first in "0123456789+-.":
        return _numeric(text)
    if len(text) <= 5 and text in _WORDS:
        if text in _MEANT:
            return _MEANT[text]
        word = _WORDS[text]
        alternative = f"write {word} or " if word in _MEANT and text.lower() not in ("y", "n") else ""
        raise Ambiguous("AC020", f"readers disagree about '{text}'", f'{alternative}quote it: "{text}"')
    return text


def _numeric(text: str) -> Plain:
    if _INT.fullmatch(text):
        if len(text.lstrip("-")) > MAX_DIGITS:
            raise Ambiguous("AC022", f"integer of {len(text.lstrip('-'))} digits", f"at most {MAX_DIGITS}; else quote")
        if text == "-0":
            raise Ambiguous("AC020", "readers disagree about '-0'", "write 0")
        return int(text)
    if _FLOAT.fullmatch(text):
        value = float(text) if len(text) < 400 else math.inf
        if not math.isfinite(value):
            raise Ambiguous(
                "AC022", f"'{_short(text)}' is beyond every floating-point number", "quote it if it is text"
            )
        return value
    if match := _DATE.fullmatch(text):
        try:
            date(*map(int, match.groups()))
        except ValueError:
            raise Ambiguous("AC023", f"there is no day {text}", "use a day of the calendar, YYYY-MM-DD") from None
        return text
    if _NOT_FINITE.fullmatch(text):
        raise Ambiguous("AC022", f"'{text}' is not a finite number", "write a number, or quote it if it is text")
    if _TIMESTAMP.fullmatch(text) or _NUMBER_TO_SOMEBODY.fullmatch(text):
        raise Ambiguous("AC020", f"readers disagree about '{_short(text)}'", _advice(text))
    return text


def _advice(text: str) -> str:
    quoted = f'quote it: "{_short(text)}"'
    if len(text) > 30:
        return quoted
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        return f"write {text.lstrip('+').replace('0', '', 1) or '0'} for the number, or {quoted}"
    if re.fullmatch(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", text) and math.isfinite(float(text)):
        mantissa, exponent = f"{float(text):e}".split("e")
        return f"write {float(mantissa)}e{exponent} for the number, or {quoted}"
    return quoted


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
