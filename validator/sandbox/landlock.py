"""Landlock: file access by path, TCP, signals and abstract sockets, without any privilege."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from validator.sandbox.kernel_calls import syscall

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_BIND_CONNECT = 3
_SCOPE_ABSTRACT_AND_SIGNAL = 3


def abi() -> int:
    """Version the kernel speaks. Raises OSError when there is none."""
    return syscall("landlock_create_ruleset", None, 0, 1)


def restrict(readable: Iterable[Path], writable: Iterable[Path] = (), executable: Iterable[Path] = ()) -> int:
    """Leave this process reading ``readable``, writing ``writable`` and starting ``executable``, and nothing else.

    Paths that do not exist are passed over. Where the kernel knows them, TCP, signals to other processes and abstract
    Unix sockets are closed too. Returns the ABI in force. Raises OSError. Needs no_new_privs.
    """
    version = abi()
    handled = _ALL_BY_ABI[min(version, 5)]
    attributes = (ctypes.c_uint64 * 3)(
        handled, _NET_BIND_CONNECT if version >= 4 else 0, _SCOPE_ABSTRACT_AND_SIGNAL if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(attributes), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in executable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
        for path in writable:
            _allow(ruleset, path, handled & ~_EXECUTE)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _allow(ruleset: int, path: Path, access: int) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        access &= _EXECUTE | _WRITE_FILE | _READ_FILE
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, handle)
        syscall("landlock_add_rule", ruleset, 1, ctypes.byref(rule), 0)
    finally:
        os.close(handle)
