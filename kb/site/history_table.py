"""What git says about an entry, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from kb.site import text
from kb.site.history import Change

_EVENTS = {"cut": "as it was where this clone's history begins", "mended": "made readable"}


def history_table(changes: Sequence[Change]) -> str:
    """Changes newest first: date, what happened, its semantic weight, and the commit."""
    if not changes:
        return "Git has no commit of this file."
    rows = []
    for change in changes:
        fields = ", ".join(f for f in change.fields if f not in ("modified", "version"))
        what = ", ".join(c.value for c in change.classes) or _EVENTS.get(change.event, change.event)
        rows.append(
            (
                change.commit.date.date().isoformat(),
                "" if change.version is None else f"v{change.version}",
                text.html(what),
                text.html(fields),
                text.html(change.commit.subject),
                text.html(change.commit.author),
                f"<code>{change.commit.hash[:8]}</code>",
            )
        )
    columns = ("date", "version", "what", "fields", "why", "who", "commit")
    return text.html_table(columns, rows, wide="why", unbroken=("date",))
