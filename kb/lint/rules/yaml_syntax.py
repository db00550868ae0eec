"""AC010 to AC025: YAML that is broken, ambiguous, or uses what has no place in an entry."""

from __future__ import annotations

from kb.lint.example import block, contract, raw
from kb.lint.rule import LoaderRule


class EmptyFile(LoaderRule):
    """A file has no content.

    An empty file is ``null`` to a YAML reader. Write an entry or remove the file; a retired entry stays, with its
    status.
    """

    code = "AC010"
    bad = (raw("", shown="(nothing)"), raw("# only a comment\n"))
    good = (block(),)


class SyntaxBroken(LoaderRule):
    """A file is not YAML.

    The message says what the parser stumbled over. Usual causes: an unquoted text that holds ``: ``, a missing quote or
    bracket, indentation that does not fit.
    """

    code = "AC011"
    bad = (block(title="Loads: wide ones"), block(patterns="[gemv"), block(title='"Wide loads'))
    good = (block(title='"Loads: wide ones"'),)


class NotAMapping(LoaderRule):
    """A file is not a mapping of fields.

    An entry is a list of ``field: value`` lines.
    """

    code = "AC012"
    bad = (raw("- id: demo/wide-loads\n"), raw("Read weights with wide loads\n"))
    good = (block(),)


class Directive(LoaderRule):
    """A YAML directive.

    ``%YAML 1.1`` would change what ``yes`` and ``010`` mean, ``%TAG`` gives names to types we do not have.
    """

    code = "AC013"
    bad = (raw("%YAML 1.1\n---\nid: demo/wide-loads\n"),)
    good = (block(),)


class SecondDocument(LoaderRule):
    """A file holds more than one document.

    One entry a file: its path is its id. A reader that stops at the first document would never see the second.
    """

    code = "AC014"
    bad = (raw("id: demo/wide-loads\n---\nid: demo/other\n"),)
    good = (block(),)


class ExplicitTag(LoaderRule):
    """An explicit tag.

    Tags choose types, and in some loaders run code. The schema knows every field's type.
    """

    code = "AC015"
    bad = (block(version="!!int 1"), block(title="!text Wide loads"))
    good = (block(title='"!important"'),)


class AnchorOrAlias(LoaderRule):
    """An anchor or an alias.

    A value that stands elsewhere cannot be reviewed where it is used, and nested aliases blow a small file up to
    gigabytes. Write the value out. Text that starts with ``*`` or ``&`` is quoted.
    """

    code = "AC016"
    bad = (block(title="&title Wide loads"), block(title="*title"))
    good = (block(title='"*Wide* loads"'),)


class MergeKey(LoaderRule):
    """A merge key.

    ``<<`` is a mapping's merge to YAML 1.1 readers and a key like any other to YAML 1.2 readers. Write the fields out.
    """

    code = "AC017"
    bad = (block(effect="{<<: {low: 1.2}, high: 1.6, of: time}"),)
    good = (block(),)


class DuplicateKey(LoaderRule):
    """A key is set twice.

    Some readers keep the first value, some the last. The message names both lines.
    """

    code = "AC018"
    bad = (raw("id: demo/wide-loads\ntitle: one\ntitle: two\n"), block(when="{target: [cuda], target: [cpu]}"))
    good = (block(),)


class KeyIsNotText(LoaderRule):
    """A key is not text.

    ``1:``, ``on:`` and ``{{ x }}:`` are a number, a truth value and a mapping to some readers. Quote the key, or
    quote the text that was not meant to be a key.
    """

    code = "AC019"
    bad = (
        raw("id: demo/wide-loads\n1: one\n"),
        block(title="{{ title }}"),
        raw("id: demo/wide-loads\nno: thing\n"),
        raw("? [a, b]\n: c\n"),
    )
    good = (block(authors='["{{ name }}"]'),)


class AmbiguousScalar(LoaderRule):
    """An unquoted value that readers disagree about.

    ``yes``, ``on`` and ``010`` are true, true and 8 to YAML 1.1 readers, and two texts and 10 to YAML 1.2 readers;
    ``1e3``, ``1_000``, ``0x1F`` and ``1:30`` are no better. Quote the text, or write the number as the fix says.
    """

    code = "AC020"
    bad = (block(title="yes"), block(title="010"), block(title="1e3"), block(title="1:30"), block(version="0x1"))
    good = (
        block(title='"Yes"'),
        contract(
            numerics="{reference: gemv, tolerance: {floor: 1.0e-3}, distributions: [normal, outliers, tiny, zeros]}"
        ),
    )


class EmptyValue(LoaderRule):
    """A key or a list item without a value.

    It reads as ``null``, which is rarely meant. In ``{what: fast, almost}`` the comma starts a new key: quote the text.
    """

    code = "AC021"
    bad = (
        block(retry_when=" "),
        block(patterns="\n  - gemv\n  -"),
        block(effect="{low: 1.2, high: 1.6, of: time, almost}"),
    )
    good = (block(effect='{low: 1.2, high: 1.6, of: "time, almost"}'),)


class NumberOutOfRange(LoaderRule):
    """A number that no reader can hold.

    ``12.0e+4567`` is infinite, an integer of thousands of digits stalls a reader, ``.nan`` equals nothing, itself
    included.
    """

    code = "AC022"
    bad = (block(version="1" + "0" * 40), block(version="1.0e+999"), block(version=".inf"))
    good = (block(),)


class ImpossibleDate(LoaderRule):
    """A day that is not in the calendar.

    Dates are written YYYY-MM-DD. Some readers roll such a day over into the next month, some stop with an error.
    """

    code = "AC023"
    bad = (block(modified="2026-02-30"), block(modified='"2026-13-01"'))
    good = (block(created='"2024-02-29"'),)


class NestedTooDeep(LoaderRule):
    """Lists and mappings are nested too deep.

    An entry needs six levels; hundreds overflow a reader's stack.
    """

    code = "AC024"
    bad = (block(patterns="[" * 40 + "]" * 40),)
    good = (block(),)


class TooManyValues(LoaderRule):
    """A file holds too many values.

    An entry has some hundreds. Twenty thousand are something else.
    """

    code = "AC025"
    bad = (raw("id: [" + "a, " * 20_001 + "]\n", shown="id: [a, a, a, …]  # 20,001 of them"),)
    good = (block(),)
