"""Compiles the Triton baselines for an architecture without a GPU, in a process of its own.

    python tests/runtime/compiled_triton.py ARCH CACHE_DIR

A stand-in driver names the architecture, and every launch only compiles. Prints one JSON object: contract id -> list of
problems (a kernel that does not compile, spills registers, or asks for more shared memory than the device has).
"""

# ruff: noqa: E402 - Triton reads the cache folder when it is imported
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ARCH = int(sys.argv[1])
os.environ["TRITON_CACHE_DIR"] = sys.argv[2]

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kb.dtype import DType, Target
from kb.library import library_root, load_library
from runtime.baselines import get_baseline
from validator.inputs.call_inputs import TORCH_DTYPES
from validator.inputs.make import scalars

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}[ARCH]
CUOBJDUMP = next(Path(triton.__file__).parent.rglob("cuobjdump"))
launched: list[Any] = []


def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    kernel = run(self, *arguments, grid=grid, warmup=True, **options)
    launched.append(kernel)
    return kernel


run = JITFunction.run
JITFunction.run = compile_only
driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", ARCH, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
    )
)


def problems(kernel: Any) -> list[str]:
    found = []
    if kernel.metadata.shared > SHARED_LIMIT:
        found.append(f"{kernel.metadata.name}: {kernel.metadata.shared} bytes of shared memory")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    if " STACK:0 " not in usage:
        found.append(f"{kernel.metadata.name}: spills: {usage.splitlines()[-1]}")
    return found


def main() -> None:
    report: dict[str, list[str]] = {}
    for contract in load_library(library_root(None)).contracts.values():
        for name in contract.baselines[Target.CUDA]:
            if not name.startswith("triton"):
                continue
            found = report.setdefault(contract.id, [])
            for storage, dims in [
                *((DType.BFLOAT16, dims) for dims in contract.sweep.performance),
                (DType.FLOAT32, contract.sweep.performance[-1]),
                (DType.FLOAT16, contract.sweep.correctness[1]),
            ]:
                tensors = {
                    t.name: torch.empty(contract.shape_of(t, dims), dtype=TORCH_DTYPES[t.dtype.bind(storage)])
                    if contract.is_present(t, dims)
                    else None
                    for t in contract.tensors
                }
                launched.clear()
                try:
                    get_baseline(contract.id, name).prepare(contract, dims, storage, tensors, scalars(contract, dims))()
                except Exception as error:
                    found.append(f"{dims} {storage}: {type(error).__name__}: {str(error)[:500]}")
                found += [f"{dims} {storage}: {problem}" for kernel in launched for problem in problems(kernel)]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
