"""Compiles kernels in many processes at once, into the caches on disk that the measuring process then reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from typing import Any

from kb.dtype import DType
from kb.library import library_root, load_library
from runtime.baselines import get_baseline
from runtime.baselines.triton_kernels.tiles import Tiles


@dataclass(frozen=True, slots=True)
class Compilation:
    """One call to make once, so that its kernels are compiled. ``tiles``: instead of the table's."""

    contract_id: str
    dims: Mapping[str, int]
    baseline: str
    tiles: Tiles | None = None


def warm_up(tasks: Sequence[Compilation], processes: int | None = None) -> list[str]:
    """Compile all; what went wrong is returned, one line a task, and stops nothing."""
    failures = []
    count = processes or max(1, min(12, (os.cpu_count() or 2) - 2, len(tasks)))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        started = {pool.submit(_compile, task): task for task in tasks}
        for future in as_completed(started):
            error = future.exception()
            if error is not None:
                task = started[future]
                tiles = astuple(task.tiles) if task.tiles else ""
                failures.append(f"{task.contract_id} {task.baseline} {dict(task.dims)} {tiles}: {str(error)[:300]}")
    return failures


def _one_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else every process starts a pool of its own


def _compile(task: Compilation) -> None:
    import torch

    from validator.inputs.call_inputs import TORCH_DTYPES
    from validator.inputs.make import scalars

    contract = load_library(library_root(None)).contracts[task.contract_id]
    tensors: dict[str, Any] = {}
    for tensor in contract.tensors:
        tensors[tensor.name] = None
        if contract.is_present(tensor, task.dims):
            shape, dtype = contract.shape_of(tensor, task.dims), TORCH_DTYPES[tensor.dtype.bind(DType.BFLOAT16)]
            tensors[tensor.name] = torch.zeros(shape, dtype=dtype, device="cuda")
    values = scalars(contract, task.dims)
    if task.tiles is None:
        baseline = get_baseline(contract.id, task.baseline)
        baseline.prepare(contract, task.dims, DType.BFLOAT16, tensors, values)()
    else:
        tuned(task.contract_id)(task.dims, tensors, values, task.tiles)()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def tuned(contract_id: str) -> Any:
    """The prepare function of a Triton baseline that takes tiles."""
    import importlib

    module = get_baseline(contract_id, f"triton_{contract_id}").module
    return importlib.import_module(module).IMPLEMENTATIONS[contract_id]
