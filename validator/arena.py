"""One block of memory for all the buffers of a call, with guard bands, that judge and worker share.

The judge writes the whole image (guards, inputs, poisoned outputs, workspace), the worker runs on it, and the judge
reads the whole image back. Nothing else passes between them, so whatever a kernel did to memory it was given is there
to be seen. On ``cpu`` the worker maps the very pages; on ``cuda`` it copies the image to the device and back.

Guards and poison are 16-bit words that are NaN as bfloat16 and as float16, and whose pairs are NaN as float32, with
random payloads: an element still equal to its poison was not written, and a value read from beyond a buffer is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kb.contract import Contract, Role
from kb.dtype import DType
from validator.inputs import CallInputs
from validator.inputs.call_inputs import TORCH_DTYPES

GUARD_BYTES = 4096
WORKSPACE = "workspace"
_WORKSPACE_ALIGN = 128
_PAGE = 4096

# NaNs that hardware and libraries produce by themselves: a kernel may write them, so poison must not look like them.
_OWN_NANS = {0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF, 0x7E00, 0xFE00}
_NAN_WORDS = torch.tensor(
    [w - 0x10000 if w > 0x7FFF else w for w in [*range(0x7F81, 0x8000), *range(0xFF81, 0x10000)] if w not in _OWN_NANS],
    dtype=torch.int16,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a buffer lies: bytes from the start of the arena."""

    name: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots in ascending order with a guard band before, between and after them; ``nbytes`` in all."""

    slots: tuple[Slot, ...]
    nbytes: int

    def slot(self, name: str) -> Slot | None:
        """The slot called ``name``; None where the argument is absent."""
        return next((s for s in self.slots if s.name == name), None)


def plan_layout(
    contract: Contract, dims: Mapping[str, int], storage: DType, workspace_bytes: int, *, shift: int = 0
) -> Layout:
    """Lay out every present tensor and the workspace, each at its least alignment and no better.

    A tensor declared with 16 bytes starts at an odd multiple of 16, so a kernel that counts on more faults or reads
    wrongly. ``shift`` moves everything by that many multiples of 256 bytes: the same call at other addresses.
    """
    slots: list[Slot] = []
    cursor = GUARD_BYTES + shift * 256
    for tensor in contract.tensors:
        if not contract.is_present(tensor, dims):
            continue
        dtype = tensor.dtype.bind(storage)
        shape = contract.shape_of(tensor, dims)
        start = _odd_multiple(cursor, tensor.align)
        slots.append(Slot(tensor.name, start, math.prod(shape) * dtype.itemsize, dtype.value, shape))
        cursor = slots[-1].end + GUARD_BYTES
    if workspace_bytes:
        start = _odd_multiple(cursor, _WORKSPACE_ALIGN)
        slots.append(Slot(WORKSPACE, start, workspace_bytes, "uint8", (workspace_bytes,)))
        cursor = slots[-1].end + GUARD_BYTES
    return Layout(tuple(slots), -(-cursor // _PAGE) * _PAGE)


class Arena:
    """A layout over ``memory`` (uint8, at least ``layout.nbytes``), as the judge fills and reads it.

    The bytes of every guard and every poisoned output are remembered, so that a change of one bit is found.
    """

    def __init__(
        self, contract: Contract, layout: Layout, memory: torch.Tensor, gen: torch.Generator, zeroed_workspace: bool
    ) -> None:
        self.contract = contract
        self.layout = layout
        self.memory = memory[: layout.nbytes]
        self._gen = gen
        self._zeroed = zeroed_workspace
        self._before: dict[str, torch.Tensor] = {}
        self._guards: list[tuple[int, int, torch.Tensor]] = []
        self._fill_guards()
        if zeroed_workspace and (slot := layout.slot(WORKSPACE)) is not None:
            self.memory[slot.offset : slot.end] = 0

    def tensor(self, name: str) -> torch.Tensor | None:
        """The buffer called ``name`` as it is now, a view; None where it is absent."""
        slot = self.layout.slot(name)
        if slot is None:
            return None
        dtype = torch.uint8 if name == WORKSPACE else TORCH_DTYPES[DType(slot.dtype)]
        return self.memory[slot.offset : slot.end].view(dtype).view(slot.shape)

    def fill(self, inputs: CallInputs) -> None:
        """Copy the inputs in, poison the outputs anew and, where its contents are undefined, the workspace too."""
        for tensor in self.contract.tensors:
            target = self.tensor(tensor.name)
            if target is None:
                continue
            if tensor.role is Role.OUT:
                self._before[tensor.name] = self._poison(tensor.name)
            else:
                given = inputs.tensors[tensor.name]
                assert given is not None
                target.copy_(given)
        if not self._zeroed and self.layout.slot(WORKSPACE) is not None:
            self._poison(WORKSPACE)

    def damaged_guard(self) -> tuple[str, int] | None:
        """(nearest buffer, bytes beyond its end, or before its start when negative) of the first changed guard byte."""
        for start, end, content in self._guards:
            changed = self.memory[start:end] != content
            if changed.any():
                return self._nearest(start + int(changed.nonzero()[0]))
        return None

    def unwritten(self, name: str) -> torch.Tensor:
        """True where an ``out`` element still holds its poison, shaped like the tensor."""
        slot = self.layout.slot(name)
        assert slot is not None
        itemsize = DType(slot.dtype).itemsize
        same = (self.memory[slot.offset : slot.end] == self._before[name]).view(-1, itemsize).all(dim=1)
        return same.view(slot.shape)

    def workspace_is_zero(self) -> bool:
        """Whether a workspace that starts zeroed was left zeroed; True where there is nothing to keep."""
        slot = self.layout.slot(WORKSPACE)
        return slot is None or not self._zeroed or not bool(self.memory[slot.offset : slot.end].any())

    def _poison(self, name: str) -> torch.Tensor:
        slot = self.layout.slot(name)
        assert slot is not None
        content = nan_bytes(slot.nbytes, self._gen)
        self.memory[slot.offset : slot.end] = content
        return content

    def _fill_guards(self) -> None:
        edges = [0, *(edge for s in self.layout.slots for edge in (s.offset, s.end)), self.layout.nbytes]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            content = nan_bytes(end - start, self._gen)
            self.memory[start:end] = content
            self._guards.append((start, end, content))

    def _nearest(self, place: int) -> tuple[str, int]:
        def distance(slot: Slot) -> int:
            return place - slot.end + 1 if place >= slot.end else place - slot.offset

        slot = min(self.layout.slots, key=lambda s: abs(distance(s)))
        return slot.name, distance(slot)


def nan_bytes(count: int, gen: torch.Generator) -> torch.Tensor:
    """``count`` random bytes (uint8) that read as NaN in every floating type at any even offset."""
    words = -(-count // 2)
    block = min(words, 1 << 20)  # beyond two megabytes the pattern repeats: drawing it would take longer than the call
    drawn = _NAN_WORDS[torch.randint(len(_NAN_WORDS), (block,), generator=gen)]
    if block < words:
        drawn = drawn.repeat(-(-words // block))[:words]
    return drawn.view(torch.uint8)[:count]


def _odd_multiple(cursor: int, align: int) -> int:
    start = -(-cursor // align) * align
    return start if (start // align) % 2 else start + align
