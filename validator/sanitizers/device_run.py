"""``python -m validator.sanitizers.device_run JOB``: one candidate, every buffer an allocation of exactly its size.

Runs under compute-sanitizer. torch's allocator rounds sizes up and hands memory out again, which would hide what the
tools look for; so the buffers come from the driver, and torch sees them as views. Between them lies memory that was
given back: the driver packs small allocations, and past the end of one would be the next one's first byte.
"""

from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from kb.contract import Role
from runtime.kernel import Kernel
from validator.inputs.call_inputs import TORCH_DTYPES

_GAP_BYTES = 64 << 10


class _Block:
    """Device memory that torch can view without copying."""

    def __init__(self, nbytes: int) -> None:
        import cupy

        self._keep = cupy.cuda.MemoryPointer(cupy.cuda.Memory(max(nbytes, 1)), 0)
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (int(self._keep.ptr), False),
            "version": 3,
            "strides": None,
        }


def main(path: Path) -> None:
    job: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - written by the judge
    kernel = Kernel(job["compiled"])
    signature = kernel.compiled.signature
    tensors: dict[str, torch.Tensor | None] = {}
    gaps = [_Block(_GAP_BYTES)]
    for tensor in signature.contract.tensors:
        if not signature.contract.is_present(tensor, signature.dims):
            tensors[tensor.name] = None
            continue
        dtype = TORCH_DTYPES[tensor.dtype.bind(signature.storage)]
        shape = signature.contract.shape_of(tensor, signature.dims)
        block = torch.as_tensor(_Block(math.prod(shape) * dtype.itemsize), device="cuda").view(dtype).view(shape)
        if tensor.role is not Role.OUT:
            block.copy_(job["tensors"][tensor.name])
        tensors[tensor.name] = block
        gaps.append(_Block(_GAP_BYTES))
    workspace = None
    if kernel.workspace_bytes:
        workspace = torch.as_tensor(_Block(kernel.workspace_bytes), device="cuda")
        if kernel.workspace_zeroed:
            workspace.zero_()
        gaps.append(_Block(_GAP_BYTES))
    gaps.clear()
    call = kernel.bind(tensors, job["scalars"], workspace=workspace)
    for _ in range(2):
        call()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
