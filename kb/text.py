"""Constrained string types that more than one model uses."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

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
