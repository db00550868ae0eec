"""Resource limits of a worker process."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use.

    ``cpu_seconds``: processor time over all its threads. ``memory_bytes``: address space beyond what the process maps
    already, None for no limit (the CUDA driver and the address sanitizer reserve terabytes they never touch).
    ``processes``: threads and processes beyond those the user runs already.
    """

    cpu_seconds: int = 600
    memory_bytes: int | None = 8 << 30
    processes: int = 512
    file_bytes: int = 0
    open_files: int = 256


def apply_limits(limits: Limits) -> None:
    """Set soft and hard limits alike; what the system refuses to lower stays as it was."""
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_FSIZE, limits.file_bytes)
    _set(resource.RLIMIT_CPU, limits.cpu_seconds)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_NPROC, _tasks_of_user() + limits.processes)
    if limits.memory_bytes is not None:
        _set(resource.RLIMIT_AS, mapped_bytes() + limits.memory_bytes)


def limits_hold(limits: Limits) -> bool:
    """True when the kernel reports the limits that can be checked by value."""
    return (
        resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        and resource.getrlimit(resource.RLIMIT_FSIZE)[1] == limits.file_bytes
        and resource.getrlimit(resource.RLIMIT_CPU)[1] == limits.cpu_seconds
    )


def mapped_bytes() -> int:
    """Address space this process maps; 0 where /proc does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _set(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value))


def _tasks_of_user() -> int:
    """Tasks of this user: RLIMIT_NPROC counts them all, whoever started them."""
    uid, total = os.getuid(), 0
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    if entry.stat().st_uid == uid:
                        total += sum(1 for _ in Path(entry.path, "task").iterdir())
    except OSError:
        return 1024
    return total
