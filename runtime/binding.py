"""Arguments of a call, checked once against the contract and laid out in the order every entry takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kb.contract import Contract, Role, Tensor
from kb.dtype import DType, Target
from kb.signature import parameters
from runtime.errors import LaunchError

if TYPE_CHECKING:
    import torch

# What a candidate may rely on for its workspace pointer.
WORKSPACE_ALIGN = 128

_C_TYPES: Mapping[DType, type[ctypes.c_float | ctypes.c_int32 | ctypes.c_int64]] = {
    DType.FLOAT32: ctypes.c_float,
    DType.INT32: ctypes.c_int32,
    DType.INT64: ctypes.c_int64,
}

CValue = ctypes.c_void_p | ctypes.c_float | ctypes.c_int32 | ctypes.c_int64


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call must be given: a contract at concrete dims, storage type and target."""

    contract: Contract
    dims: Mapping[str, int]
    storage: DType
    target: Target

    def check_tensors(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        """Raises LaunchError for the first tensor that is missing, unknown, or not as the contract says."""
        names = {t.name for t in self.contract.tensors}
        for name in tensors:
            if name not in names:
                raise LaunchError(f"{self.contract.id} has no tensor '{name}' (it has {', '.join(sorted(names))})")
        for tensor in self.contract.tensors:
            self._check_tensor(tensor, tensors.get(tensor.name))
        self._check_overlap(tensors)

    def check_scalars(self, scalars: Mapping[str, float]) -> None:
        """Raises LaunchError when a scalar is missing or unknown."""
        names = [s.name for s in self.contract.scalars]
        for name in names:
            if name not in scalars:
                raise LaunchError(f"{self.contract.id}: the scalar '{name}' has no value")
        for name in scalars:
            if name not in names:
                raise LaunchError(f"{self.contract.id} has no scalar '{name}' (it has {', '.join(names) or 'none'})")

    def pack(
        self, tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, float], workspace: torch.Tensor | None
    ) -> tuple[CValue, ...]:
        """C values in the order of ``kb.signature.parameters``. The arguments must have been checked."""
        dtypes = {s.name: s.dtype.bind(self.storage) for s in self.contract.scalars}
        values: list[CValue] = []
        for parameter in parameters(self.contract, self.target):
            if parameter.kind == "tensor":
                found = tensors.get(parameter.name)
                values.append(ctypes.c_void_p(0 if found is None else found.data_ptr()))
            elif parameter.kind == "scalar":
                c_type = _C_TYPES[dtypes[parameter.name]]
                number = scalars[parameter.name]
                values.append(c_type(number) if c_type is ctypes.c_float else c_type(int(number)))
            elif parameter.kind == "dim":
                values.append(ctypes.c_int32(self.dims[parameter.name]))
            else:
                values.append(ctypes.c_void_p(0 if workspace is None else workspace.data_ptr()))
        return tuple(values)

    def _check_tensor(self, tensor: Tensor, given: torch.Tensor | None) -> None:
        where = f"{self.contract.id}.{tensor.name}"
        if not self.contract.is_present(tensor, self.dims):
            if given is not None:
                raise LaunchError(f"{where}: must be absent (None) where not {tensor.present_when}")
            return
        if given is None:
            raise LaunchError(f"{where}: is missing")
        dtype, shape = tensor.dtype.bind(self.storage), self.contract.shape_of(tensor, self.dims)
        found = str(given.dtype).removeprefix("torch.")
        if found != dtype.value:
            raise LaunchError(f"{where}: dtype {found}; {dtype.value} is needed")
        if tuple(given.shape) != shape:
            raise LaunchError(f"{where}: shape {list(given.shape)}; {list(shape)} is needed")
        if given.device.type != self.target.value:
            raise LaunchError(f"{where}: lies on {given.device}; {self.target.value} is needed")
        if not given.is_contiguous():
            raise LaunchError(f"{where}: strides {list(given.stride())} are not those of a dense row-major tensor")
        if given.data_ptr() % tensor.align:
            raise LaunchError(
                f"{where}: starts {given.data_ptr() % tensor.align} bytes past a multiple of {tensor.align}"
            )

    def _check_overlap(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        """Every pointer is ``__restrict__``: what is written may share no byte with any other argument."""
        spans = [
            (found.data_ptr(), found.data_ptr() + found.numel() * found.element_size(), tensor)
            for tensor in self.contract.tensors
            if (found := tensors.get(tensor.name)) is not None
        ]
        spans.sort(key=lambda span: span[:2])
        for i, (_, end, first) in enumerate(spans):
            for start, _, second in spans[i + 1 :]:
                if start >= end:
                    break
                if first.role is not Role.IN or second.role is not Role.IN:
                    raise LaunchError(f"{self.contract.id}: {first.name} and {second.name} share memory")


def make_workspace(size: int, *, zeroed: bool, device: torch.device | str) -> torch.Tensor | None:
    """``size`` bytes (uint8) aligned to WORKSPACE_ALIGN on ``device``; None for 0 bytes."""
    import torch

    if size == 0:
        return None
    make = torch.zeros if zeroed else torch.empty
    whole = make(size + WORKSPACE_ALIGN, dtype=torch.uint8, device=device)
    start = -whole.data_ptr() % WORKSPACE_ALIGN
    return whole[start : start + size]


def check_workspace(workspace: torch.Tensor | None, size: int, target: Target) -> None:
    """Raises LaunchError unless ``workspace`` has ``size`` dense, aligned bytes on the target's device."""
    if size == 0:
        return
    if workspace is None:
        raise LaunchError(f"a workspace of {size} bytes is needed")
    if workspace.device.type != target.value:
        raise LaunchError(f"workspace: lies on {workspace.device}; {target.value} is needed")
    if not workspace.is_contiguous() or workspace.numel() * workspace.element_size() < size:
        raise LaunchError(f"workspace: {size} contiguous bytes are needed")
    if workspace.data_ptr() % WORKSPACE_ALIGN:
        raise LaunchError(f"workspace: must start on a multiple of {WORKSPACE_ALIGN} bytes")


def addresses(values: Sequence[CValue]) -> ctypes.Array[ctypes.c_void_p]:
    """The ``void**`` a CUDA launch takes; ``values`` must outlive it."""
    array = ctypes.c_void_p * len(values)
    return array(*(ctypes.addressof(v) for v in values))
