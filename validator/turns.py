"""Turns on one device, so that several judgements at once cost no timing its quiet.

Gates that only check may run side by side; a gate that measures has the device to itself. The lock is a pair of files:
whoever wants to measure first closes the door to newcomers and then waits until those inside have left, so that a
stream of checking judgements cannot keep a measuring one waiting for ever. The kernel of the operating system frees a
lock with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of all processes that name the same ``folder`` (made when missing) and ``device``."""

    folder: Path
    device: str

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device beside others; waits while somebody measures or is about to."""
        with self._held("door", fcntl.LOCK_SH):
            room = self._lock("room", fcntl.LOCK_SH)
        try:
            yield
        finally:
            os.close(room)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device with nobody beside; waits until all who use it have left."""
        with self._held("door", fcntl.LOCK_EX), self._held("room", fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, name: str, how: int) -> Iterator[None]:
        descriptor = self._lock(name, how)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, name: str, how: int) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Close-on-exec is Python's default, so a worker started meanwhile holds no turn.
        descriptor = os.open(self.folder / f"{self.device}.{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, how)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
