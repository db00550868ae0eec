"""AC101 to AC107: what the schema of principles and contracts says, at the node it says it about."""

from __future__ import annotations

from kb.lint.example import block, contract, dead_end
from kb.lint.rule import LoaderRule


class UnknownField(LoaderRule):
    """A field that the schema does not have.

    A mistyped field would be ignored silently elsewhere. The message offers the closest name.
    """

    code = "AC101"
    bad = (block(titel="Read weights"), block(when="{targets: [cuda]}"))
    good = (block(),)


class MissingField(LoaderRule):
    """A field that the schema needs is missing.

    The message says which, and in which mapping.
    """

    code = "AC102"
    bad = (block(why=None), block(effect="{low: 1.2, of: time}"))
    good = (block(effect="unknown"),)


class WrongValue(LoaderRule):
    """A value that its field cannot have.

    Of the wrong type, outside its range, not one of the allowed words, or text that is too long.
    """

    code = "AC103"
    bad = (block(status="acepted"), block(version="1.5"), block(authors="[]"), contract(rounds="2"))
    good = (block(status="draft"),)


class NumberForText(LoaderRule):
    """A number where text is meant.

    A version such as 3.10 reads as the number 3.1 and a digest such as 12345 loses its leading zeros. Quote it.
    """

    code = "AC104"
    bad = (block(title="3.10"), block(authors="[12]"))
    good = (block(title='"3.10"'),)


class MalformedId(LoaderRule):
    """An id or a name that is malformed.

    Ids are made of a-z, 0-9 and one kind of separator, by full match: a Cyrillic o looks like a Latin one and is none.
    """

    code = "AC105"
    bad = (block(id='"Demo/Wide Loads"'), block(patterns="[gеmv]"), contract(family="Demo_Family"))
    good = (block(),)


class InconsistentFields(LoaderRule):
    """Fields that contradict each other.

    Each field is fine by itself; together they are not. The message says which rule of the model is broken.
    """

    code = "AC106"
    bad = (
        dead_end(retry_when=None),
        block(modified='"2026-11-01"'),
        block(effect="{low: 2.0, high: 1.5, of: time}"),
        contract(variants="[{id: all, when: tokens > 0, doc: Everything}]"),
    )
    good = (dead_end(),)


class BadExpression(LoaderRule):
    """An expression that cannot be parsed.

    Conditions and sizes are built from integers, names of dims, ``+ - * // %``, ``min``, ``max``, ``ceil_div``,
    comparisons, ``and``, ``or`` and ``not``.
    """

    code = "AC107"
    bad = (block(when='{dims: ["width <="]}'), contract(constraints='["width / 8 == 1"]'))
    good = (block(when='{dims: ["width % 8 == 0 and rows > 16"]}'),)
