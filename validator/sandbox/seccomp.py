"""System-call filters (seccomp-bpf), assembled here.

Two filters are stacked, and the stricter answer of the two counts. The first lists what a kernel's process may do and
refuses the rest with EPERM; the second kills the process at once for a call no kernel can have a reason for, so that
the attempt is seen and not only stopped. Verification runs between the two: a refused call returns, a killed one does
not.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from validator.sandbox.kernel_calls import numbers, prctl, syscall

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16
_CLONE_THREAD = 0x00010000
_PROT_EXEC, _MAP_ANONYMOUS = 4, 0x20
_X32 = 0x40000000
_AF_UNIX = 1
_PR_SET_PDEATHSIG = 1


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# What Python, libgomp and a kernel need once everything is imported. Files are a matter for Landlock.
ALLOWED = _words(
    "read write readv writev recvmsg sendmsg recvfrom sendto munmap mremap brk madvise futex futex_waitv exit "
    "exit_group rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack sched_yield sched_getaffinity sched_setaffinity "
    "sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min gettid getpid getppid getrandom "
    "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time set_robust_list rseq set_tid_address close "
    "poll ppoll select pselect6 epoll_wait epoll_pwait fstat newfstatat stat lstat statx lseek open openat access "
    "faccessat faccessat2 readlink readlinkat getdents64 getcwd pread64 arch_prctl membarrier getrusage "
    "prlimit64 getrlimit sysinfo uname restart_syscall getcpu fcntl dup tgkill geteuid getuid getgid getegid mlock "
    "munlock mincore get_mempolicy set_mempolicy mbind fadvise64 seccomp"
)

# No kernel has a reason for these; an attempt ends the process with SIGSYS.
FATAL = _words(
    "socket socketpair connect bind listen accept accept4 execve execveat fork vfork ptrace mount umount2 pivot_root "
    "chroot kill tkill process_vm_readv process_vm_writev bpf unshare setns init_module finit_module delete_module "
    "kexec_load reboot userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key "
    "perf_event_open pidfd_open pidfd_getfd pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo open_by_handle_at "
    "name_to_handle_at mount_setattr move_mount fsopen fsmount open_tree setuid setgid setresuid setresgid swapon acct "
    "shmget mq_open memfd_create"
)

# With CUDA the driver needs ioctl, its own threads and Unix sockets; a Triton baseline starts a compiler.
FATAL_CUDA = _words(
    "ptrace mount umount2 pivot_root chroot process_vm_readv process_vm_writev bpf setns init_module finit_module "
    "delete_module kexec_load reboot userfaultfd keyctl add_key request_key open_by_handle_at mount_setattr move_mount "
    "fsopen fsmount open_tree swapon acct"
)

Instruction = tuple[int, int, int, int]


def allow_list() -> bytes:
    """The filter that refuses everything but ALLOWED; threads are allowed, processes and fresh code pages are not."""
    calls, _ = numbers()
    code = _head()
    code += _when(
        "clone", [(_LOAD, 0, 0, _ARGS), (_JSET, 0, 1, _CLONE_THREAD), _ret(_ALLOW), _ret(_errno(errno.EPERM))]
    )
    code += _when("clone3", [_ret(_errno(errno.ENOSYS))])  # its flags sit behind a pointer; libc falls back to clone
    code += _when("mprotect", [(_LOAD, 0, 0, _ARGS + 16), (_JSET, 0, 1, _PROT_EXEC), _ret(_errno(1)), _ret(_ALLOW)])
    code += _when(
        "mmap",
        [
            (_LOAD, 0, 0, _ARGS + 16), (_JSET, 1, 0, _PROT_EXEC), _ret(_ALLOW),
            (_LOAD, 0, 0, _ARGS + 24), (_JSET, 0, 1, _MAP_ANONYMOUS), _ret(_errno(errno.EPERM)), _ret(_ALLOW),
        ],
    )  # fmt: skip
    # Not the signal on the parent's death: clearing it would let a process outlive its supervisor.
    code += _when("prctl", [(_LOAD, 0, 0, _ARGS), (_JEQ, 0, 1, _PR_SET_PDEATHSIG), _ret(_errno(1)), _ret(_ALLOW)])
    for name in ALLOWED:
        if name in calls:
            code += _when(name, [_ret(_ALLOW)])
    return _assemble([*code, _ret(_errno(errno.EPERM))])


def kill_list(starts_program: bool = False) -> bytes:
    """The filter that ends the process for a call in FATAL or for a new process.

    ``starts_program``: one ``execve`` is still to come, so that call is left to Landlock.
    """
    calls, _ = numbers()
    code = _head()
    code += _when("clone", [(_LOAD, 0, 0, _ARGS), (_JSET, 0, 1, _CLONE_THREAD), _ret(_ALLOW), _ret(_KILL)])
    for name in FATAL:
        if name in calls and not (starts_program and name == "execve"):
            code += _when(name, [_ret(_KILL)])
    return _assemble([*code, _ret(_ALLOW)])


def cuda_list() -> bytes:
    """The filter for a process that drives a GPU: FATAL_CUDA kills, sockets other than Unix ones are refused."""
    calls, _ = numbers()
    code = _head()
    code += _when("socket", [(_LOAD, 0, 0, _ARGS), (_JEQ, 0, 1, _AF_UNIX), _ret(_ALLOW), _ret(_errno(errno.EACCES))])
    for name in FATAL_CUDA:
        if name in calls:
            code += _when(name, [_ret(_KILL)])
    return _assemble([*code, _ret(_ALLOW)])


def install(program: bytes) -> None:
    """Put a filter on every thread of this process, for good. Needs no_new_privs. Raises OSError."""
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = Program(len(program) // 8, ctypes.addressof(buffer))
    try:
        syscall("seccomp", 1, 1, ctypes.byref(header))  # SET_MODE_FILTER, TSYNC
    except OSError:
        prctl(22, 2, ctypes.byref(header))


def _head() -> list[Instruction]:
    _, audit = numbers()
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, audit), _ret(_KILL), (_LOAD, 0, 0, _NR)]
    if audit == 0xC000003E:
        code += [(_JGE, 0, 1, _X32), _ret(_KILL)]
    return code


def _when(name: str, body: list[Instruction]) -> list[Instruction]:
    """``body`` for the call ``name``; every path of it returns, so the number stays loaded for the next test."""
    return [(_JEQ, 0, len(body), numbers()[0][name]), *body]


def _ret(action: int) -> Instruction:
    return (_RET, 0, 0, action)


def _errno(number: int) -> int:
    return _ERRNO | number


def _assemble(code: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
