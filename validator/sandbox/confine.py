"""Applying the layers to the current process, in the one order that works, and checking each."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from validator.sandbox import landlock, namespaces, seccomp
from validator.sandbox.kernel_calls import prctl
from validator.sandbox.limits import Limits, apply_limits, limits_hold

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38


@dataclass(frozen=True, slots=True)
class Profile:
    """How tightly to confine.

    ``kind``: ``kernel`` for code loaded into this process, ``program`` for a program that is about to be started in
    its place, ``cuda`` for a process that drives a GPU (devices, ioctls and a compiler must keep working).
    """

    kind: Literal["kernel", "program", "cuda"]
    limits: Limits = field(default_factory=Limits)
    readable: tuple[Path, ...] = ()
    executable: tuple[Path, ...] = ()


def fork_into_namespaces(
    on_child: Callable[[int], None] | None = None, *, namespaces_wanted: bool = True, pid: bool = True
) -> tuple[str, ...]:
    """Leave the namespaces of this process and go on in a child that is the first process of new ones.

    Called in a process that has nothing else to do. It stays behind as a shell: it waits for the child, dies with
    its own parent, and ends with the child's exit status, or by the child's signal. Returns in the child, with the
    namespaces left. Where there are none it returns in the child all the same. ``on_child`` is told, in the process
    that stays behind, the child's number as the outside knows it. Without ``pid`` the process keeps its number: the
    CUDA driver does not start (error 304) where /proc shows another namespace's processes.
    """
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    left = namespaces.unshare_all(pid=pid) if namespaces_wanted else ()
    child = os.fork()
    if child != 0:
        if on_child is not None:
            on_child(child)
        stay_behind(child)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.setsid()
    return tuple(name for name in left if name != "uts")


def confine(profile: Profile, left: Sequence[str]) -> tuple[str, ...]:
    """Apply every other layer to this process; names of all layers that are in force, checked.

    ``left``: namespaces already left. Must run while the process has one thread. There is no way back.
    """
    active = ["session"] if os.getsid(0) == os.getpid() else []
    active += [f"{name}-namespace" for name in ("user", "pid", "ipc") if name in left and _namespace_holds(name)]
    if "net" in left and _only_loopback():
        active.append("network-namespace")
    attempts: list[tuple[str, Callable[[], object], Callable[[], bool]]] = []
    if "mnt" in left and profile.kind != "cuda":
        attempts.append(("read-only-filesystem", namespaces.read_only_filesystem, _cannot_write))
    if "mnt" in left and "pid" in left and profile.kind == "kernel":
        attempts.append(("own-proc", namespaces.own_proc, _alone_in_proc))
    attempts.append(("resource-limits", lambda: apply_limits(profile.limits), lambda: limits_hold(profile.limits)))
    if "user" in left or os.geteuid() != 0 or profile.kind != "cuda":
        attempts.append(("no-capabilities", namespaces.drop_capabilities, _no_capabilities))
    attempts.append(("no-new-privileges", _no_new_privileges, lambda: prctl(39) == 1))
    if profile.kind != "cuda":
        attempts.append(("landlock", lambda: _landlock(profile), _cannot_start_programs_or_write))
    attempts.append(("seccomp", lambda: _seccomp(profile), lambda: _filter_holds(profile)))
    for name, apply, holds in attempts:
        try:
            apply()
            if holds():
                active.append(name)
        except OSError:
            continue
    if "seccomp" in active and profile.kind == "kernel":
        seccomp.install(seccomp.kill_list())  # after the checks: from here on what was refused ends the process
    return tuple(active)


def stay_behind(child: int) -> NoReturn:
    """Wait for ``child`` and end as it ended. Never returns."""
    while True:
        try:
            _, status = os.waitpid(child, 0)
            break
        except InterruptedError:
            continue
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def _landlock(profile: Profile) -> None:
    system = [Path(p) for p in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc", "/sys/devices/system", "/dev")]
    python = [Path(sys.prefix), Path(sys.base_prefix), *(Path(p) for p in sys.path if p)]
    landlock.restrict([*system, *python, *profile.readable], executable=profile.executable)


def _seccomp(profile: Profile) -> None:
    if profile.kind == "cuda":
        seccomp.install(seccomp.cuda_list())
    elif profile.kind == "program":
        seccomp.install(seccomp.kill_list(starts_program=True))
    else:
        seccomp.install(seccomp.allow_list())


def _no_new_privileges() -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(OSError):
        prctl(_PR_SET_DUMPABLE, 0)  # no other process of this user may look into it


def _namespace_holds(name: str) -> bool:
    return os.getpid() == 1 if name == "pid" else bool(namespaces.inode(name))


def _only_loopback() -> bool:
    try:
        return {name for _, name in socket.if_nameindex()} <= {"lo"}
    except OSError:
        return False


def _cannot_write() -> bool:
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/"):  # noqa: S108 - tried, not used
        if not Path(folder).is_dir():
            continue
        probe = f"{folder}/.agentcompile-write-probe-{os.getpid()}"
        try:
            os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        except OSError:
            continue
        Path(probe).unlink()
        return False
    return True


def _cannot_start_programs_or_write() -> bool:
    """Landlock answers EACCES where a read-only mount answers EROFS; both checks must be refused."""
    try:
        handle = os.open("/dev/null", os.O_WRONLY)
    except OSError as error:
        return error.errno == errno.EACCES and _cannot_write()
    os.close(handle)
    return False


def _alone_in_proc() -> bool:
    return [p.name for p in Path("/proc").iterdir() if p.name.isdigit()] == [str(os.getpid())]


def _no_capabilities() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("CapEff:", "CapPrm:", "CapAmb:")) and int(line.split()[1], 16) != 0:
            return False
    return True


def _filter_holds(profile: Profile) -> bool:
    """Try what must not work. For ``program`` the filter kills, so the kernel's word is taken."""
    if profile.kind == "program":
        return prctl(21) == 2  # PR_GET_SECCOMP; the call itself is allowed by the filter
    if profile.kind == "cuda":
        return _refused(lambda: socket.socket(socket.AF_INET).close())
    return all(
        _refused(attempt)
        for attempt in (
            lambda: socket.socket(socket.AF_INET).close(),
            lambda: socket.socketpair()[0].close(),
            lambda: os.execv("/nonexistent", ["x"]),  # noqa: S606 - must be refused before it is looked up
            lambda: os.kill(os.getpid(), 0),
        )
    )


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return True
    except OSError:
        return False
    return False
