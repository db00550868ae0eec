"""Searches as they run, on a terminal: one row a lane; plain lines where there is no terminal."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from generator.journal import Event


class LiveView:
    """Shows events on stderr. Call ``on_event`` from any thread; ``name`` tells several searches apart."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._rows: dict[tuple[str, int], tuple[str, str]] = {}
        self._received: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Event, name: str = "") -> None:
        """Take one event of a search or its judge."""
        with self._lock:
            line = self._line(event, name)
            if line is None or self._quiet:
                return
            lane, key, text = line
            self._rows[name, lane] = (key, text)
            if self._live is not None:
                self._live.update(self._table())
            elif event["event"] != "text":
                place = f"{name} {key}".strip()
                self._console.print(f"{place}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _line(self, event: Event, name: str) -> tuple[int, str, str] | None:
        lane = int(event.get("lane", -1))
        match event:
            case {"event": "state", "text": text}:
                return lane, "", text
            case {"event": "prompt", "key": key, "manifest": manifest}:
                self._received[name, lane] = 0
                return lane, key, f"asked, {manifest['prefix_tokens'] + manifest['history_tokens']} tokens"
            case {"event": "text", "key": key, "text": text}:
                self._received[name, lane] = self._received.get((name, lane), 0) + len(text)
                return lane, key, f"{self._received[name, lane]} characters received"
            case {"event": "reply", "key": key, "completion": completion}:
                return lane, key, f"reply from {completion['model']}, {len(completion['text'])} characters"
            case {"event": "judging", "key": key, "digest": digest}:
                return lane, key, f"judging {digest[:12]}"
            case {"event": "gate", "gate": gate, "outcome": outcome}:
                return lane, str(event.get("key", "gate")), f"gate {gate}: {outcome}"
            case {"event": "attempt", "key": key}:
                return lane, key, _outcome(event)
            case {"event": "lane-stopped", "key": key, "reason": reason}:
                return lane, key, f"stopped: {reason}"
            case {"event": "admitted", "digest": digest}:
                return lane, digest[:12], "admitted"
        return None

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        named = any(name for name, _ in self._rows)
        for column in (*(("pattern",) if named else ()), "question", "state"):
            table.add_column(column)
        for (name, _), (key, text) in sorted(self._rows.items()):
            table.add_row(*((name,) if named else ()), key, escape(text))
        return table


def _outcome(event: Event) -> str:
    verdict = event.get("verdict")
    if verdict is None:
        return "unusable reply: " + "; ".join(f["message"] for f in event.get("findings", []))
    ratios = [t["ratio"] for t in verdict["timings"]]
    speed = f", {min(ratios):.3f} of the baseline at the slowest shape" if ratios else ""
    if verdict["accepted"]:
        return f"accepted{speed}"
    failed = next((g["gate"] for g in verdict["gates"] if g["outcome"] == "failed"), "a gate")
    return f"rejected by {failed}{speed}"
