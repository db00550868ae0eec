"""Frames between judge and supervisor: JSON, a sequence number, an HMAC, and file descriptors that go along.

The key is drawn by the judge after the candidate's process has been forked and reaches the supervisor alone, so no
copy of it was ever in an address space the candidate runs in. A frame that was forged, repeated, reordered or cut off
raises BrokenChannel, and a broken channel fails the candidate.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

MAX_FRAME = 16 << 20
_HEADER = struct.Struct("!I32s")


class BrokenChannel(Exception):  # noqa: N818 - a state of the channel, not a mistake of its user
    """The other end is gone, or something else than it has written to the channel."""


class ForgedFrame(BrokenChannel):
    """Something was written to the channel that is no frame of the other end."""


class Channel:
    """One end. ``side`` is ``judge`` or ``worker``; the two ends must differ."""

    def __init__(self, sock: socket.socket, side: str) -> None:
        self._socket = sock
        self._side = side
        self._key = b"\0" * 32
        self._sent = self._received = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def rekey(self, key: bytes) -> None:
        """Authenticate with ``key`` from the next frame on, in both directions."""
        self._key = key
        self._sent = self._received = 0

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one frame. Raises BrokenChannel."""
        payload = json.dumps(message).encode()
        if len(payload) > MAX_FRAME:
            raise BrokenChannel(f"a message of {len(payload)} bytes; {MAX_FRAME} at most")
        header = _HEADER.pack(len(payload), self._mac(self._side, self._sent, payload))
        self._sent += 1
        try:
            done = socket.send_fds(self._socket, [header], list(descriptors)) if descriptors else 0
            self._socket.sendall((header + payload)[done:])
        except OSError as error:
            raise BrokenChannel(f"the other end is gone ({error})") from None

    def receive(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next frame and its descriptors. Raises BrokenChannel, and TimeoutError after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        header, descriptors = self._read(_HEADER.size, deadline, with_descriptors=True)
        try:
            size, mac = _HEADER.unpack(header)
            if size > MAX_FRAME:
                raise ForgedFrame(f"a frame of {size} bytes; {MAX_FRAME} at most")
            payload, _ = self._read(size, deadline)
            other = "worker" if self._side == "judge" else "judge"
            if not hmac.compare_digest(mac, self._mac(other, self._received, payload)):
                raise ForgedFrame("a frame is not authentic")
            self._received += 1
            message = json.loads(payload)
        except (BrokenChannel, ValueError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, BrokenChannel):
                raise
            raise ForgedFrame(f"a frame is not JSON ({error})") from None
        return message, descriptors

    def close(self) -> None:
        self._socket.close()

    def _mac(self, side: str, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, side.encode() + struct.pack("!Q", number) + payload, hashlib.sha256)

    def _read(self, size: int, deadline: float | None, with_descriptors: bool = False) -> tuple[bytes, list[int]]:
        data, descriptors = b"", []
        while len(data) < size:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError
            try:
                if with_descriptors:
                    part, found, _, _ = socket.recv_fds(self._socket, size - len(data), 8)
                    descriptors += found
                else:
                    part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise BrokenChannel(f"the other end is gone ({error})") from None
            if not part:
                raise BrokenChannel("the other end is gone")
            data += part
        return data, descriptors
