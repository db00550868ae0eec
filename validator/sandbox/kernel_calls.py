"""Linux system calls that Python has no binding for, and their numbers on the two architectures we run on."""

from __future__ import annotations

import ctypes
import os
import platform

# Numbers are ABI: they never change. aarch64 has only the newer calls (openat, not open), hence the gaps.
_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25,
    "mincore": 27, "madvise": 28, "shmget": 29, "dup": 32, "nanosleep": 35, "getpid": 39, "socket": 41, "connect": 42,
    "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "bind": 49, "listen": 50,
    "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "kill": 62, "uname": 63,
    "fcntl": 72, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99,
    "ptrace": 101, "getuid": 102, "getgid": 104, "setuid": 105, "setgid": 106, "geteuid": 107, "getegid": 108,
    "getppid": 110, "setresuid": 117, "setresgid": 119, "rt_sigqueueinfo": 129, "sigaltstack": 131,
    "sched_getparam": 143, "sched_getscheduler": 145, "sched_get_priority_max": 146, "sched_get_priority_min": 147,
    "mlock": 149, "munlock": 150, "pivot_root": 155, "prctl": 157, "arch_prctl": 158, "chroot": 161, "acct": 163,
    "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "init_module": 175, "delete_module": 176,
    "gettid": 186, "tkill": 200, "time": 201, "futex": 202, "sched_setaffinity": 203, "sched_getaffinity": 204,
    "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "tgkill": 234, "mbind": 237,
    "set_mempolicy": 238, "get_mempolicy": 239, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
    "keyctl": 250, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
    "ppoll": 271, "unshare": 272, "set_robust_list": 273, "epoll_pwait": 281, "accept4": 288, "eventfd2": 290,
    "pipe2": 293, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "prlimit64": 302, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "setns": 308, "getcpu": 309, "process_vm_readv": 310, "process_vm_writev": 311,
    "finit_module": 313, "seccomp": 317, "getrandom": 318, "memfd_create": 319, "bpf": 321, "execveat": 322,
    "userfaultfd": 323, "membarrier": 324, "statx": 332, "rseq": 334, "pidfd_send_signal": 424, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432,
    "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "faccessat2": 439, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "futex_waitv": 449,
}  # fmt: skip
_AARCH64 = {
    "getcwd": 17, "eventfd2": 19, "epoll_pwait": 22, "dup": 23, "fcntl": 25, "ioctl": 29, "umount2": 39, "mount": 40,
    "pivot_root": 41, "faccessat": 48, "chroot": 51, "openat": 56, "close": 57, "pipe2": 59, "getdents64": 61,
    "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73,
    "readlinkat": 78, "newfstatat": 79, "fstat": 80, "acct": 89, "exit": 93, "exit_group": 94, "set_tid_address": 96,
    "unshare": 97, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "ptrace": 117,
    "sched_getscheduler": 120, "sched_getparam": 121, "sched_setaffinity": 122, "sched_getaffinity": 123,
    "sched_yield": 124, "sched_get_priority_max": 125, "sched_get_priority_min": 126, "restart_syscall": 128,
    "kill": 129, "tkill": 130, "tgkill": 131, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigqueueinfo": 138, "rt_sigreturn": 139, "reboot": 142, "setgid": 144, "setuid": 146, "setresuid": 147,
    "setresgid": 149, "uname": 160, "getrlimit": 163, "getrusage": 165, "prctl": 167, "getcpu": 168,
    "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
    "gettid": 178, "sysinfo": 179, "mq_open": 180, "shmget": 194, "socket": 198, "socketpair": 199, "bind": 200,
    "listen": 201, "accept": 202, "connect": 203, "sendto": 206, "recvfrom": 207, "sendmsg": 211, "recvmsg": 212,
    "brk": 214, "munmap": 215, "mremap": 216, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "execve": 221, "mmap": 222, "fadvise64": 223, "swapon": 224, "mprotect": 226, "mlock": 228, "munlock": 229,
    "mincore": 232, "madvise": 233, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237,
    "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242, "prlimit64": 261, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273,
    "seccomp": 277, "getrandom": 278, "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282,
    "membarrier": 283, "statx": 291, "rseq": 293, "pidfd_send_signal": 424, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432,
    "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "faccessat2": 439, "mount_setattr": 442,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "futex_waitv": 449,
}  # fmt: skip
_TABLES = {"x86_64": (_X86_64, 0xC000003E), "aarch64": (_AARCH64, 0xC00000B7)}

_libc = ctypes.CDLL(None, use_errno=True)


class UnsupportedError(OSError):
    """The kernel or the architecture does not offer what was asked for."""


def numbers() -> tuple[dict[str, int], int]:
    """Call numbers by name and the audit id of this architecture. Raises UnsupportedError elsewhere."""
    try:
        return _TABLES[platform.machine()]
    except KeyError:
        raise UnsupportedError(0, f"no table of system calls for {platform.machine()}") from None


def syscall(name: str, *arguments: object) -> int:
    """Make one system call. Raises OSError with the kernel's errno."""
    number = numbers()[0][name]
    result = int(_libc.syscall(ctypes.c_long(number), *(_as_word(a) for a in arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def prctl(option: int, *arguments: object) -> int:
    """``prctl`` with up to four further words. Raises OSError."""
    words = [_as_word(a) for a in arguments] + [ctypes.c_ulong(0)] * (4 - len(arguments))
    result = int(_libc.prctl(ctypes.c_int(option), *words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
    return result


def _as_word(value: object) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value
