"""What this machine has of what AgentCompile can use, and for what is missing: what it costs and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.errors import RuntimeFailure

Standing = Literal["ok", "missing", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked for. ``found`` says what is there or what is wrong; ``advice`` what to do, empty when fine."""

    group: str
    name: str
    standing: Standing
    found: str
    advice: str = ""


# Package, what it is for, how to get it.
_PACKAGES = (
    ("torch", "capture, references, the engine", "pip install 'agentcompile[run]'"),
    ("transformers", "model configurations and tokenizers", "pip install 'agentcompile[run]'"),
    ("safetensors", "model weights", "pip install 'agentcompile[run]'"),
    ("cuda-core", "compiling CUDA kernels", "pip install 'agentcompile[nvrtc]'"),
    ("cuda-bindings", "compiling and launching CUDA kernels", "pip install 'agentcompile[nvrtc]'"),
    ("cupy-cuda13x", "loading CUDA kernels", "pip install 'agentcompile[cuda]'"),
    ("triton", "hand-tuned CUDA baselines", "comes with torch's CUDA builds"),
    ("flashinfer-python", "one more attention baseline", "pip install flashinfer-python"),
    ("anthropic", "generating kernels with the anthropic provider", "pip install 'agentcompile[llm]'"),
)


_OPENMP = '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n'


def examine() -> list[Check]:
    """Look at everything. Runs a compiler, forks once, takes seconds, and writes to the compile cache alone."""
    # The sandbox is tried by forking, which wants a process without threads: before torch is imported.
    sandbox = _safely(_sandbox)
    groups = (_python, _cpp, _nvrtc, _gpu, _tools)
    return [*(check for group in groups for check in _safely(group)), *sandbox, *_safely(_folders)]


def _safely(group: Callable[[], Iterator[Check]]) -> list[Check]:
    """All checks of a group up to the first that fails in a way nobody foresaw, and that one as a problem."""
    found: list[Check] = []
    try:
        for check in group():
            found.append(check)
    except Exception as error:  # a broken installation is exactly what this command is asked about
        found.append(Check(group.__name__[1:], "look", "problem", f"{type(error).__name__}: {error}"))
    return found


def _python() -> Iterator[Check]:
    yield Check("python", "python", "ok", f"{platform.python_version()}, {platform.machine()}, {platform.system()}")
    for package, purpose, how in _PACKAGES:
        try:
            yield Check("python", package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Check("python", package, "missing", f"for {purpose}", how)


def _cpp() -> Iterator[Check]:
    from runtime.compile_cache import CompileCache
    from runtime.compile_cpu import compile_cpu, find_compiler
    from runtime.device import cpu_device

    device = cpu_device()
    size = f"{device.num_sms} threads, {device.cache_bytes >> 20} MiB last-level cache"
    yield Check("cpu", "processor", "ok", f"{device.name}, {size}")
    try:
        compiler = find_compiler()
        compile_cpu(_OPENMP, CompileCache())
    except RuntimeFailure as error:
        how = "apt-get install g++ (or clang with libomp-dev), or name a compiler in CXX"
        yield Check("cpu", "C++ compiler with OpenMP", "missing", str(error), how)
        return
    yield Check("cpu", "C++ compiler with OpenMP", "ok", f"{compiler.version} ({compiler.command[0]})")


def _nvrtc() -> Iterator[Check]:
    from runtime.compile_cuda import INSTALL, cuda_headers, nvrtc_version

    try:
        version = nvrtc_version()
        yield Check("cuda", "NVRTC", "ok", f"{version[0]}.{version[1]}")
        headers = cuda_headers(version)
    except RuntimeFailure as error:
        yield Check("cuda", "NVRTC", "missing", str(error), INSTALL)
        return
    text = f"{headers.version[0]}.{headers.version[1]} in {headers.root}"
    if headers.missing:
        how = f"pip install {' '.join(headers.wheels_missing)}"
        yield Check("cuda", "headers", "problem", f"{text}, without {', '.join(headers.missing)}", how)
    else:
        yield Check("cuda", "headers", "ok", text)


def _gpu() -> Iterator[Check]:
    from runtime.device import cuda_device, has_cuda

    if not has_cuda():
        smi = shutil.which("nvidia-smi")
        how = "install torch's CUDA build (its default on Linux)" if smi else "kernels still compile; a GPU runs them"
        yield Check("cuda", "GPU", "missing", "torch sees none", how)
        return
    device = cuda_device()
    memory = f"{device.memory_bytes / 2**30:.0f} GiB, {device.cache_bytes >> 20} MiB L2"
    yield Check("cuda", "GPU", "ok", f"{device.name} ({device.arch}, {device.num_sms} SMs, {memory})")
    yield Check("cuda", "driver", "ok", f"{device.driver or 'unknown'}, torch for CUDA {device.versions['cuda']}")
    if device.capability < 80:
        yield Check("cuda", "architecture", "problem", f"{device.arch}", "sm_80 or newer is supported")


def _tools() -> Iterator[Check]:
    from validator.sanitizers import cuda as sanitizer

    found = sanitizer.find_tool()
    if found:
        yield Check("tools", "compute-sanitizer", "ok", str(found))
    else:
        text = "the sanitizer gate is skipped on CUDA"
        yield Check("tools", "compute-sanitizer", "missing", text, sanitizer.INSTALL)
    for tool, purpose, how in (
        ("ncu", "profiles of CUDA kernels", "install Nsight Compute, or the CUDA toolkit"),
        ("git", "history and review of the library", "apt-get install git"),
    ):
        path = shutil.which(tool)
        yield Check("tools", tool, "ok" if path else "missing", path or f"for {purpose}", "" if path else how)


def _sandbox() -> Iterator[Check]:
    from validator.sandbox import available_layers

    for layer, state in available_layers().items():
        if state == "active":
            yield Check("sandbox", layer, "ok", state)
        else:
            yield Check("sandbox", layer, "missing", "not available here", state)


def _folders() -> Iterator[Check]:
    from kb.library import library_root
    from runtime.compile_cache import default_root

    root = default_root()
    place = next(p for p in (root, *root.parents) if p.exists())
    writable = os.access(place, os.W_OK)
    how = "" if writable else "set XDG_CACHE_HOME to a folder that can be written to"
    yield Check("folders", "compile cache", "ok" if writable else "problem", str(root), how)
    library = library_root()
    there = (library / "contracts").is_dir()
    how = "" if there else "name a library with --library or AGENTCOMPILE_LIBRARY"
    yield Check("folders", "library", "ok" if there else "problem", str(Path(library)), how)
