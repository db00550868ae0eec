"""When a regeneration began: what the model ran before is what the store held then, also after a kill and a resume."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from kb.store.durable import replace_file


def begin(work: Path, *, now: datetime | None = None) -> datetime:
    """The moment the regeneration in ``work`` began, which is now where none is under way. Raises OSError."""
    path = work / "begun.json"
    try:
        return datetime.fromisoformat(json.loads(path.read_text(encoding="utf-8"))["begun"])
    except (OSError, ValueError, KeyError, TypeError):
        moment = now or datetime.now(UTC)
    work.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"begun": moment.isoformat()}).encode())
    return moment


def end(work: Path) -> None:
    """The regeneration is complete; the next one begins anew."""
    (work / "begun.json").unlink(missing_ok=True)
