"""The arguments of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kb.contract import Contract, Role
from kb.dtype import DType

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.FLOAT32: torch.float32,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}

# Fills integer outputs before a call, so that one that was not written is seen. Floats are filled with NaN.
INTEGER_POISON = -858993460


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Tensors by name (None where the argument is absent at these dims) and scalars by name.

    ``in`` and ``inout`` tensors are always there; ``out`` tensors only after ``with_tensors(allocate_outputs(...))``.
    Scalars are values a float32 holds.
    """

    tensors: Mapping[str, torch.Tensor | None]
    scalars: Mapping[str, float]

    def with_tensors(self, replaced: Mapping[str, torch.Tensor | None]) -> CallInputs:
        """The same call with some tensors replaced or added; the others are shared, not copied."""
        return CallInputs(dict(self.tensors) | dict(replaced), self.scalars)

    def clone(self) -> CallInputs:
        """A copy that shares no memory with this one."""
        copies = {name: None if t is None else t.clone() for name, t in self.tensors.items()}
        return CallInputs(copies, self.scalars)

    def to(self, device: torch.device | str) -> CallInputs:
        """The same call on another device (tensors already there are shared)."""
        moved = {name: None if t is None else t.to(device) for name, t in self.tensors.items()}
        return CallInputs(moved, self.scalars)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values() if t is not None)


def allocate_outputs(
    contract: Contract, dims: Mapping[str, int], storage: DType, device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor | None]:
    """Fresh ``out`` tensors, filled with NaN or INTEGER_POISON."""
    outputs: dict[str, torch.Tensor | None] = {}
    for tensor in contract.tensors:
        if tensor.role is not Role.OUT:
            continue
        if not contract.is_present(tensor, dims):
            outputs[tensor.name] = None
            continue
        dtype = TORCH_DTYPES[tensor.dtype.bind(storage)]
        fill = float("nan") if dtype.is_floating_point else INTEGER_POISON
        outputs[tensor.name] = torch.full(contract.shape_of(tensor, dims), fill, dtype=dtype, device=device)
    return outputs
