"""Where the CUDA headers are: in NVIDIA's wheels, under CUDA_HOME, or in the system's toolkit.

NVRTC brings a compiler and no headers. A folder of them is *complete* when candidates may include
``cuda_bf16.h``, ``mma.h`` and ``cooperative_groups.h``; the last two need ``crt/`` and the CUDA C++ core libraries,
which NVIDIA ships in wheels of their own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# What a header needs, and the wheel that brings it.
NEEDED = {
    "cuda_bf16.h": "nvidia-cuda-runtime",
    "cuda_fp16.h": "nvidia-cuda-runtime",
    "cooperative_groups.h": "nvidia-cuda-runtime",
    "mma.h": "nvidia-cuda-runtime",
    "crt/mma.h": "nvidia-cuda-crt",
    "cuda/std/cstdint": "nvidia-cuda-cccl",
}


@dataclass(frozen=True, slots=True)
class CudaHeaders:
    """Include folders of one toolkit. ``version`` is (major, minor), (0, 0) when unreadable."""

    root: Path
    folders: tuple[Path, ...]
    version: tuple[int, int]
    missing: tuple[str, ...]

    @property
    def wheels_missing(self) -> tuple[str, ...]:
        """Packages that would complete it."""
        return tuple(sorted({NEEDED[name] for name in self.missing}))


@lru_cache(maxsize=8)
def find_headers(wanted: tuple[int, int]) -> CudaHeaders | None:
    """The headers that fit an NVRTC of version ``wanted`` best; None when there are none at all.

    Complete ones come first, then those of the same version, of the same major version, and of a wheel.
    """
    found = [h for root in dict.fromkeys(_roots()) if (h := _inspect(root)) is not None]
    return min(found, key=lambda h: _rank(h, wanted), default=None)


def _rank(headers: CudaHeaders, wanted: tuple[int, int]) -> tuple[int, bool, bool]:
    return len(headers.missing), headers.version[0] != wanted[0], headers.version != wanted


def _roots() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location).glob("cu[0-9]*/include"), reverse=True)
        yield Path(location) / "cuda_runtime" / "include"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value) / "include"
    if compiler := shutil.which("nvcc"):
        yield Path(compiler).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
    yield from sorted(Path("/usr/local").glob("cuda-[0-9]*/include"), reverse=True)


def _inspect(root: Path) -> CudaHeaders | None:
    if not (root / "cuda_bf16.h").is_file():
        return None
    folders = tuple(f for f in (root, root / "cccl", root.parent / "cccl" / "include") if f.is_dir())
    missing = tuple(name for name in NEEDED if not any((folder / name).is_file() for folder in folders))
    return CudaHeaders(root, folders, _version(root), missing)


def _version(root: Path) -> tuple[int, int]:
    for name in ("cuda.h", "cuda_runtime_api.h"):
        try:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if match := re.search(r"#define\s+(?:CUDA_VERSION|CUDART_VERSION)\s+(\d+)", text):
            number = int(match[1])
            return number // 1000, number % 1000 // 10
    return 0, 0
