"""The record of a search: appended before anything depends on it, read back to go on after a kill.

One JSON object a line. An event counts once its line is whole and synced; a torn last line is what a kill leaves
and is cut off on opening. A reply is journalled before it is used, so that no reply is paid for twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Event = dict[str, Any]


class JournalError(Exception):
    """A journal that cannot be opened; the message says why and what to do."""


class Journal:
    """Append-only events in ``path``; open in one process at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise JournalError(f"{path}: another process is running this search") from None
        self.events: list[Event] = list(self._recover())

    def append(self, event: Event) -> None:
        """Add one event durably. Raises OSError when the disk refuses."""
        # Keys stay in their order: dims read back must render as they did, or a resumed prompt would differ.
        line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise
        self.events.append(event)

    def find(self, kind: str, key: str) -> Event | None:
        """The latest event of a kind for a key."""
        for event in reversed(self.events):
            if event["event"] == kind and event.get("key") == key:
                return event
        return None

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recover(self) -> Iterator[Event]:
        size = os.fstat(self._file).st_size
        content = b""
        while len(content) < size:
            chunk = os.pread(self._file, size - len(content), len(content))
            if not chunk:
                break
            content += chunk
        good = 0
        for line in content.splitlines(keepends=True):
            try:
                event = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                event = None
            if not isinstance(event, dict) or "event" not in event:
                break
            good += len(line)
            yield event
        if good < len(content):
            if b"\n" in content[good:].rstrip(b"\n"):
                os.close(self._file)
                raise JournalError(f"{self.path}: damaged after byte {good}; move it aside to start afresh")
            os.ftruncate(self._file, good)
