"""A search as it runs, on a terminal: one row a lane; plain lines where there is no terminal."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from generator.journal import Event


class LiveView:
    """Shows events on stderr. Call ``on_event`` from any thread."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._rows: dict[int, tuple[str, str]] = {}
        self._received: dict[int, int] = {}
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

    def on_event(self, event: Event) -> None:
        """Take one event of a search or its judge."""
        with self._lock:
            line = self._line(event)
            if line is None or self._quiet:
                return
            lane, key, text = line
            self._rows[lane] = (key, text)
            if self._live is not None:
                self._live.update(self._table())
            elif event["event"] != "text":
                self._console.print(f"{key}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _line(self, event: Event) -> tuple[int, str, str] | None:
        lane = int(event.get("lane", -1))
        match event:
            case {"event": "prompt", "key": key, "manifest": manifest}:
                self._received[lane] = 0
                return lane, key, f"asked, {manifest['prefix_tokens'] + manifest['history_tokens']} tokens"
            case {"event": "text", "key": key, "text": text}:
                self._received[lane] = self._received.get(lane, 0) + len(text)
                return lane, key, f"{self._received[lane]} characters received"
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
        table.add_column("question")
        table.add_column("state")
        for _, (key, text) in sorted(self._rows.items()):
            table.add_row(key, text)
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
