"""C++17 with OpenMP to a shared library, through the system's compiler, under limits."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kb.dtype import Target
from runtime.compile_cache import CompileCache, CompileKey
from runtime.compiler_log import parse_gnu, quote_source
from runtime.errors import CompileError, CompilerMessage, Level, MissingToolError
from runtime.image import Image

SOURCE_NAME = "kernel.cpp"
PRELUDE_NAME = "prelude.cpp"  # what is in front of the #line directive
SET_THREADS = "agentcompile_set_threads"

# Data, recorded with every image. Sums may be contracted but not reordered: a candidate that wants a vectorised
# reduction says so with `#pragma omp simd reduction`, as it would have to in any other build.
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-Wl,-z,defs",  # an undefined function is an error here, not at the first call
    "-Wall",
    "-Wno-unused",
    "-Wno-unknown-pragmas",
)
_TUNING = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}

# The OpenMP runtime keeps the number of threads by calling thread, so it is set through the very runtime the kernel is
# bound to: a unit of its own in the same library.
_THREADS_UNIT = f'#include <omp.h>\nextern "C" void {SET_THREADS}(int n) {{ omp_set_num_threads(n); }}\n'


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What a compilation may take: wall seconds, address space, and bytes a file it writes."""

    seconds: float = 60.0
    memory_bytes: int = 4 << 30
    file_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the words to call it by and the first line of its ``--version``."""

    command: tuple[str, ...]
    version: str


def compile_cpu(text: str, cache: CompileCache, limits: CompilerLimits | None = None) -> Image:
    """Compile ``text``, prelude included, for this machine's processor.

    ``text`` marks where the candidate begins with ``#line 1 "kernel.cpp"``. Raises CompileError with the compiler's
    messages or the limit it ran into, and MissingToolError when there is no compiler.
    """
    limits = limits or CompilerLimits()
    compiler = find_compiler()
    arch = platform.machine()
    key = CompileKey(
        target=Target.CPU,
        text=text,
        options=(*OPTIONS, *([_TUNING[arch]] if arch in _TUNING else [])),
        arch=arch,
        # -march=native makes the processor's features an input: a cache on a shared home must not mix machines.
        compiler=f"{compiler.version}, {' '.join(compiler.command)}, for {processor_identity()}",
    )
    if (found := cache.find(key)) is not None:
        return found
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="agentcompile-build-") as folder:
        work = Path(folder)
        (work / PRELUDE_NAME).write_text(text, encoding="utf-8")
        (work / "threads.cpp").write_text(_THREADS_UNIT, encoding="utf-8")
        command = [*compiler.command, *key.options, PRELUDE_NAME, "threads.cpp", "-o", "kernel.so"]
        code, log = _run_limited(command, work, limits)
        output = work / "kernel.so"
        messages = quote_source(parse_gnu(log, SOURCE_NAME), text, SOURCE_NAME)
        if code != 0 or not output.is_file():
            raise _failure(compiler, code, log, messages)
        data = output.read_bytes()
    warnings = [m for m in messages if m.line is not None]
    return cache.put(key, data, resources={}, messages=warnings, seconds=time.perf_counter() - started)


def find_compiler() -> Compiler:
    """The compiler in use: CXX, else the first of g++, c++ and clang++ on the PATH. Raises MissingToolError."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find_compiler(chosen: str, path: str) -> Compiler:
    candidates = [shlex.split(chosen)] if chosen.strip() else [["g++"], ["c++"], ["clang++"]]
    for words in candidates:
        if (found := shutil.which(words[0], path=path or None)) is None:
            continue
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20, check=False)
        if asked.returncode == 0 and asked.stdout:
            return Compiler((found, *words[1:]), asked.stdout.splitlines()[0].strip())
    named = f"CXX={chosen} does not run" if chosen.strip() else "no C++ compiler (g++, c++, clang++) on the PATH"
    raise MissingToolError(f"{named}; install one (apt-get install g++) or name it in CXX")


@lru_cache(maxsize=1)
def processor_identity() -> str:
    """Model and instruction sets of this processor, in one short text."""
    import hashlib

    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in wanted:
                lines.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()
    sets = hashlib.sha256("\n".join(f"{k}={v}" for k, v in sorted(lines.items())).encode()).hexdigest()[:12]
    return f"{lines.get('model name', platform.machine())} [{sets}]"


def _run_limited(command: list[str], folder: Path, limits: CompilerLimits) -> tuple[int, str]:
    """Exit status and log. A shell sets the limits: it is the one way that is safe beside other threads."""
    kib, seconds, blocks = limits.memory_bytes >> 10, int(limits.seconds) + 1, limits.file_bytes >> 9
    script = f'ulimit -v {kib}; ulimit -t {seconds}; ulimit -f {blocks}; exec "$@"'
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "TMPDIR": str(folder),
        "HOME": str(folder),
    }
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise CompileError(f"the C++ compiler ran longer than {limits.seconds:g} s and was stopped") from None
    return process.returncode, output.decode(errors="replace")


def _failure(compiler: Compiler, code: int, log: str, messages: tuple[CompilerMessage, ...]) -> CompileError:
    name = Path(compiler.command[0]).name
    errors = [m for m in messages if m.level is Level.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return CompileError(f"{name}: {errors[0]}{more}", messages, log)
    tail = log.strip().splitlines()[-1:] or [f"exit status {code}, perhaps a limit on memory or time"]
    return CompileError(f"{name}: {tail[0]}", messages, log)
