"""Constrained string types that more than one model uses."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints

# Full-match ASCII classes on purpose: `\w` would accept a Cyrillic letter that looks like a Latin one.
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
PrincipleId = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*$", max_length=160)
]
ContractId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=60)]
Symbol = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Line = Annotated[str, StringConstraints(pattern=r"^[^\n]+$", min_length=1, max_length=120, strip_whitespace=True)]
Prose = Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _iso_date(value: object) -> object:
    # Lax mode would also take 0, "20261130" and a time of day.
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"there is no day {value}") from None
    if isinstance(value, date):
        return value
    raise ValueError("a day such as 2026-11-30 is needed (YYYY-MM-DD)")


IsoDate = Annotated[date, BeforeValidator(_iso_date)]
