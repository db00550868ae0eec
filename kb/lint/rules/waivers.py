"""AC027 to AC029: waivers that do not say enough, excuse nothing, or are over."""

from __future__ import annotations

from kb.diagnostic import Severity
from kb.lint.example import block
from kb.lint.rule import EngineRule

_THIN = "It is faster. # noqa: AC115"


class MalformedWaiver(EngineRule):
    """A waiver that does not say what it excuses, or why.

    ``# noqa: AC115 the mechanism is in the paper, until=2027-06-30``: one or more codes, a reason, and, where it should
    end, a day. Findings of the loader and of the schema cannot be waived, nor can a waiver be waived.
    """

    code = "AC027"
    companions = ("AC115",)
    bad = (
        block(why="It is faster by far. # noqa"),
        block(why=f"{_THIN}"),
        block(why=f"{_THIN} for now, until=soon"),
        block(why="It is faster by far. # noqa: AC999 no such rule"),
    )
    good = (block(why=f"{_THIN} the mechanism is in the paper"),)


class UnusedWaiver(EngineRule):
    """A waiver that excuses nothing.

    What it excused is gone, or it stands on the wrong line. A waiver at the end of a line covers the value that starts
    there, one on its own line the value below, one above the first field the whole file.
    """

    code = "AC028"
    severity = Severity.WARNING
    bad = (block(title="Read weights with wide loads # noqa: AC111 a size of one model"),)
    good = (block(why=f"{_THIN} the mechanism is in the paper"),)


class ExpiredWaiver(EngineRule):
    """A waiver whose day has passed.

    What it excused is reported again. Fix it, or extend the waiver with a reason that still holds.
    """

    code = "AC029"
    companions = ("AC115",)
    bad = (block(why=f"{_THIN} until the paper is out, until=2025-01-31"),)
    good = (block(why=f"{_THIN} until the paper is out, until=2031-01-31"),)
