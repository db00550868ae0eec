"""Names a candidate may not use, with the reason an author reads."""

from __future__ import annotations

import re

from kb.dtype import Target

_PROCESS = "starts, ends or steers a process"
_FILE = "reads or writes files, memory mappings or the network"
_CODE = "loads or jumps to code"
_THREAD = "starts threads; use OpenMP"
_CLOCK = "reads a clock, so behaviour could depend on being timed"
_MODE = "changes the floating-point mode of whoever calls it"
_ENVIRONMENT = "reads the environment"
_HOST = "is the host's API; a candidate is device code"
_DEVICE = "has no place in a kernel"


def _because(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


# Wherever they stand.
_ALWAYS: dict[str, str] = {}
for _reason, _names in {
    _PROCESS: "system popen pclose execl execlp execle execv execvp execvpe execve execveat fexecve posix_spawn "
    "posix_spawnp fork vfork daemon waitpid wait3 wait4 killpg abort quick_exit at_quick_exit atexit on_exit _exit "
    "_Exit __cxa_atexit setjmp longjmp _setjmp _longjmp sigsetjmp siglongjmp sigaction sigprocmask setitimer ptrace "
    "prctl syscall set_terminate setrlimit prlimit sched_setaffinity sched_setscheduler setpriority nice "
    "unshare setns personality main",
    _FILE: "fopen freopen fdopen fclose fread fwrite fgets fputs fprintf printf vprintf vfprintf dprintf sprintf "
    "snprintf puts putchar scanf fscanf sscanf FILE stdin stdout stderr tmpfile tmpnam mkstemp openat creat ioctl "
    "fcntl mmap mmap64 munmap mprotect mremap madvise mlock shm_open shmget shmat memfd_create dup2 dup3 pipe2 "
    "socket socketpair accept4 sendto sendmsg recvfrom recvmsg getaddrinfo gethostbyname pread pwrite "
    "readv writev unlink rmdir mkdir chmod chown ftruncate opendir readdir ifstream ofstream fstream filesystem "
    "iostream cout cerr clog wcout process_vm_readv process_vm_writev",
    _CODE: "dlopen dlmopen dlsym dlvsym dlclose dladdr dl_iterate_phdr __builtin___clear_cache "
    "__builtin_return_address __builtin_frame_address __builtin_apply __builtin_apply_args __builtin_return "
    "__builtin_longjmp __builtin_setjmp __builtin_eh_return __builtin_extract_return_addr __has_include "
    "__has_include_next __has_embed __DATE__ __TIME__ __TIMESTAMP__ __FILE__ __BASE_FILE__ __FILE_NAME__",
    _THREAD: "pthread_create jthread packaged_task shared_future condition_variable recursive_mutex shared_mutex "
    "call_once thrd_create this_thread counting_semaphore stop_token coroutine_handle",
    _CLOCK: "chrono clock clock64 clock_gettime clock_getres clock_nanosleep gettimeofday nanosleep __nanosleep usleep "
    "omp_get_wtime omp_get_wtick _rdtsc __rdtsc __rdtscp __builtin_ia32_rdtsc __builtin_ia32_rdtscp _rdpmc __rdpmc "
    "__builtin_ia32_rdpmc __builtin_readcyclecounter __clock __clock64 __clockhi globaltimer __globaltimer timespec "
    "timeval difftime mktime strftime getrusage system_clock steady_clock high_resolution_clock __pm0 __pm1 __pm2 "
    "__pm3",
    _MODE: "_mm_setcsr _MM_SET_FLUSH_ZERO_MODE _MM_SET_DENORMALS_ZERO_MODE _MM_SET_ROUNDING_MODE "
    "_MM_SET_EXCEPTION_STATE _MM_SET_EXCEPTION_MASK __builtin_ia32_ldmxcsr _fxrstor _xrstor fesetround fesetenv "
    "feholdexcept feupdateenv __arm_wsr __builtin_aarch64_set_fpcr __set_fpcr",
    _ENVIRONMENT: "getenv secure_getenv setenv putenv environ getpid getppid gettid getuid geteuid gethostname sysconf "
    "uname getauxval sched_getcpu get_nprocs",
}.items():
    _ALWAYS |= dict.fromkeys(_names.split(), _reason)

# Ordinary words too: forbidden on ``cpu`` where they are called, qualified with `::` or have their address taken. On
# ``cuda`` there is no C library behind them, and `barrier.wait()` is honest work.
_WHEN_USED = {
    name: reason
    for reason, names in {
        _PROCESS: "exit kill raise signal alarm pause wait clone terminate",
        _FILE: "read write open close send recv bind listen remove rename link access stat fstat poll select truncate "
        "pipe dup connect accept",
        _CLOCK: "time sleep",
        _THREAD: "thread async promise mutex",
    }.items()
    for name in names.split()
}
_WHEN_USED_CUDA = dict.fromkeys(("malloc", "free", "calloc", "realloc", "alloca"), _DEVICE)

_CUDA = _because(
    "new delete __trap __brkpt assert __assertfail __assert_fail __prof_trigger __managed__ __host__", _DEVICE
)
_CPU = _because("asm __asm __asm__ __builtin_trap __builtin_debugtrap __builtin_alloca ifunc", _CODE)
_BOTH_KEYWORDS = _because("throw try catch co_await co_yield co_return", _DEVICE)

_HOST_API = re.compile(r"^(cuda|cu|nvrtc|nvml|cublas|cudnn)[A-Z]\w*$")
_DEVICE_SIDE = frozenset({"cudaTriggerProgrammaticLaunchCompletion", "cudaGridDependencySynchronize"})
_PREFIXES = (("pthread_", _THREAD), ("omp_set_", "changes OpenMP's settings"), ("sem_", _THREAD), ("mq_", _FILE))
_OMP_OTHER = frozenset({"omp_pause_resource", "omp_pause_resource_all", "omp_target_alloc", "omp_control_tool"})


def forbidden(name: str, target: Target) -> str | None:
    """Why ``name`` may not appear in a candidate for ``target``; None when it may."""
    table = _CUDA if target is Target.CUDA else _CPU
    for names in (_ALWAYS, _BOTH_KEYWORDS, table):
        if name in names:
            return names[name]
    if _HOST_API.match(name) and name not in _DEVICE_SIDE:
        return _HOST
    if name in _OMP_OTHER:
        return "changes OpenMP's settings"
    return next((reason for prefix, reason in _PREFIXES if name.startswith(prefix)), None)


def forbidden_when_used(name: str, target: Target) -> str | None:
    """Why a function of this name may not be used; None when it may."""
    return (_WHEN_USED_CUDA if target is Target.CUDA else _WHEN_USED).get(name)
