"""CUDA C++ to a cubin through NVRTC. Needs no GPU and no driver, so it runs wherever tests run."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kb.dtype import Target
from runtime.compile_cache import CompileCache, CompileKey
from runtime.compiler_log import parse_nvrtc, parse_ptxas
from runtime.cuda_headers import CudaHeaders, find_headers
from runtime.errors import CompileError, CompilerMessage, Level, MissingToolError
from runtime.image import Image

SOURCE_NAME = "kernel.cu"
PRELUDE_NAME = "prelude.cu"  # what is in front of the #line directive
INSTALL = "pip install 'agentcompile[nvrtc]'"

# Data, not code: recorded with every image. No fast math: a candidate that wants it writes the intrinsic. ptxas is
# verbose because its report is where registers and spills come from on a machine without a GPU.
OPTIONS: Mapping[str, Any] = {"std": "c++17", "lineinfo": True, "ptxas_options": ["-v"]}


def compile_cuda(text: str, arch: str, cache: CompileCache) -> Image:
    """Compile ``text``, prelude included, for ``arch`` such as ``sm_90``.

    ``text`` marks where the candidate begins with ``#line 1 "kernel.cu"``. Raises CompileError with the messages of
    NVRTC and ptxas, and MissingToolError when NVRTC or the headers are absent.
    """
    version = nvrtc_version()
    headers = cuda_headers(version)
    # 9.0a, 10.0a: the architecture-specific instructions (wgmma, setmaxnreg) exist in these targets alone.
    target = f"{arch}a" if arch in ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121") else arch
    key = CompileKey(
        target=Target.CUDA,
        text=text,
        options=(f"arch={target}", *(f"{name}={value}" for name, value in OPTIONS.items())),
        arch=arch,
        compiler=f"nvrtc {version[0]}.{version[1]}, headers {headers.version[0]}.{headers.version[1]}",
    )
    if (found := cache.find(key)) is not None:
        return found
    started = time.perf_counter()
    code, log = _run_nvrtc(text, target, headers)
    return cache.put(
        key,
        code,
        resources=parse_ptxas(log),
        messages=_relevant(parse_nvrtc(log, SOURCE_NAME)),
        seconds=time.perf_counter() - started,
    )


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of NVRTC. Raises MissingToolError."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingToolError(f"NVRTC cannot be loaded ({error}); {INSTALL}") from error
    if int(status) != 0:
        raise MissingToolError(f"NVRTC does not answer ({status}); {INSTALL}")
    return int(major), int(minor)


def cuda_headers(version: tuple[int, int]) -> CudaHeaders:
    """The headers in use with NVRTC ``version``. Raises MissingToolError."""
    headers = find_headers(version)
    if headers is None:
        raise MissingToolError(f"no CUDA headers (cuda_bf16.h) found; {INSTALL}, or set CUDA_HOME to a toolkit")
    return headers


_IMPORTING = threading.Lock()


def _run_nvrtc(text: str, target: str, headers: CudaHeaders) -> tuple[bytes, str]:
    program, options = _cuda_core()
    log = io.StringIO()
    try:
        # Without a name of its own, cuda-core writes the source to a temporary file for debuggers.
        settings = options(name=PRELUDE_NAME, arch=target, include_path=[str(f) for f in headers.folders], **OPTIONS)
        code = program(text, "c++", settings).compile("cubin", logs=log).code
    except Exception as error:
        messages = _relevant(parse_nvrtc(str(error), SOURCE_NAME))
        if not messages and "NVRTC_ERROR_COMPILATION" not in str(error):
            raise CompileError(f"NVRTC failed: {str(error).strip() or type(error).__name__}", log=str(error)) from error
        raise CompileError(_summary(messages, headers), messages, str(error).replace("\0", "")) from None
    return bytes(code), log.getvalue()


def _relevant(messages: Sequence[CompilerMessage]) -> tuple[CompilerMessage, ...]:
    """Without the warnings about dims of the prelude that a candidate does not use."""
    return tuple(m for m in messages if m.level is Level.ERROR or m.line is not None or m.file == "ptxas")


def _summary(messages: Sequence[CompilerMessage], headers: CudaHeaders) -> str:
    first = str(messages[0]) if messages else "no message"
    others = sum(m.level is Level.ERROR for m in messages) - 1
    more = f" (and {others} more)" if others > 0 else ""
    hint = ""
    if "cannot open source file" in first and headers.wheels_missing:
        hint = f"; the headers are incomplete: pip install {' '.join(headers.wheels_missing)}"
    return f"NVRTC: {first}{more}{hint}"


def _cuda_core() -> tuple[Any, Any]:
    # Several threads compile at once, and cuda.core cannot be imported by two of them at the same time.
    with _IMPORTING:
        return _import_cuda_core()


def _import_cuda_core() -> tuple[Any, Any]:
    try:
        try:
            from cuda.core import Program, ProgramOptions
        except ImportError:  # its name before version 0.5
            from cuda.core.experimental import Program, ProgramOptions
    except ImportError as error:
        raise MissingToolError(f"cuda-core is not installed ({error}); {INSTALL}") from error
    return Program, ProgramOptions
