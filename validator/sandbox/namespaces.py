"""Namespaces: a process that sees no network, no other process and no file it could write."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from validator.sandbox.kernel_calls import prctl, syscall

_USER, _PID, _NET, _MOUNT, _IPC, _UTS = 0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x08000000, 0x04000000
FLAGS = {"user": _USER, "pid": _PID, "net": _NET, "mnt": _MOUNT, "ipc": _IPC, "uts": _UTS}
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def unshare_all(*, pid: bool = True) -> tuple[str, ...]:
    """Leave as many namespaces as the system lets this process leave; names of those left. ``pid`` may be kept.

    ``pid`` takes effect for the next child. With a user namespace all come together; a root without one takes them
    one by one; a plain user without one gets none. The identity outside stays what it was: inside it is ``nobody``.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = {name: flag for name, flag in FLAGS.items() if pid or name != "pid"}
    everything = sum(flags.values())
    try:
        syscall("unshare", everything)
    except OSError:
        left = []
        for name, flag in flags.items():
            if name == "user":
                continue
            with contextlib.suppress(OSError):
                syscall("unshare", flag)
                left.append(name)
        return tuple(left)
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    with contextlib.suppress(OSError):
        Path("/proc/self/uid_map").write_text(f"65534 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"65534 {gid} 1")
    return tuple(flags)


def read_only_filesystem() -> None:
    """Make every mount read-only and private to this mount namespace. Raises OSError.

    ``mount_setattr`` does it in one atomic call for the whole tree (Linux 5.12); a bind remount of ``/`` alone would
    leave the mounts below it writable.
    """
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE, None)
    attributes = (ctypes.c_uint64 * 4)(0x1 | 0x2, 0, 0, 0)  # set RDONLY and NOSUID
    syscall("mount_setattr", -100, ctypes.c_char_p(b"/"), 0x8000, ctypes.byref(attributes), 32)  # AT_RECURSIVE


def own_proc() -> None:
    """Show only this PID namespace under /proc. Raises OSError (containers that mask /proc forbid it)."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RDONLY, None)


def drop_capabilities() -> None:
    """Give up every capability, the bounding and ambient sets included. Raises OSError."""
    for capability in range(64):
        try:
            prctl(24, capability)  # PR_CAPBSET_DROP
        except OSError:
            break  # past the last capability of this kernel, or none to drop
    with contextlib.suppress(OSError):
        prctl(47, 4)  # PR_CAP_AMBIENT_CLEAR_ALL
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"capset: {os.strerror(error)}")


def inode(name: str) -> str:
    """Identity of one of this process's namespaces, as /proc shows it; empty where /proc does not."""
    try:
        return str(Path(f"/proc/self/ns/{name}").readlink())
    except OSError:
        return ""


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    def text(value: str | None) -> ctypes.c_char_p:
        return ctypes.c_char_p(None if value is None else value.encode())

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount {target}: {os.strerror(error)}")
