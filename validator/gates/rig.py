"""A candidate loaded at one shape and storage type, with two arenas to call it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kb.contract import Role
from kb.dtype import DType, Target
from kb.manifest import Finding
from runtime.launch_cuda import FIRST_CLUSTER_CAPABILITY
from validator.arena import WORKSPACE, Arena, plan_layout
from validator.gates.context import Context
from validator.inputs import CallInputs
from validator.references import Expected
from validator.shapes import Shape
from validator.worker.late_inputs import late_inputs, starts_early
from validator.worker.shared_memory import dirtying_for

# Up to here the judge's own processor is quicker with a truth than a GPU that candidates are running on: truths are
# hundreds of small operations with results that are waited for.
_ON_HOST_BYTES = 64 << 20
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def truth_device(context: Context, shape: Shape) -> str:
    """Where the judge draws inputs and computes truths for ``shape``; the library path runs on the target's device."""
    small = context.contract.bytes_moved(shape.dims, DType.FLOAT32) <= _ON_HOST_BYTES
    return "cpu" if small else context.torch_device


@dataclass(frozen=True, slots=True)
class Ran:
    """Outputs of a call (copies, whole tensors, on the CPU) and what was wrong around them."""

    outputs: Mapping[str, torch.Tensor]
    findings: tuple[Finding, ...]


class Rig:
    """Loads on construction. Place 0 and place 1 hold the same buffers at different addresses.

    The one lies further from the start of its memory than the other, so that no pointer of one equals one of the other.
    On a GPU shared memory is filled with NaN before every call.
    """

    def __init__(self, context: Context, shape: Shape, storage: DType) -> None:
        compiled = context.compiled(shape, storage)
        self._context, self._shape, self._storage = context, shape, storage
        self._resident = context.resident()
        self._resident.drop()
        kernel, self.resources = self._resident.load(compiled)
        if context.target is Target.CUDA:
            static = {name: int(needs["shared_bytes"]) for name, needs in self.resources.items()}
            if (dirtying := dirtying_for(compiled.launches, static, compiled.device, context.cache)) is not None:
                self._resident.dirty(dirtying)
        zeroed = context.candidate.plan.workspace.zeroed == "once"
        self._arenas: list[Arena] = []
        self._calls: list[int | None] = [None, None]
        self._numbers: list[int] = []
        self._kernel = kernel
        self.starts_early = (
            context.target is Target.CUDA
            and compiled.device.capability >= FIRST_CLUSTER_CAPABILITY
            and starts_early(compiled.launches)
        )
        gen = torch.Generator().manual_seed(context.seed_for("guards", shape.dims, storage))
        for shift in (0, 5):
            layout = plan_layout(context.contract, shape.dims, storage, compiled.workspace_bytes, shift=shift)
            number, memory = self._resident.share(layout.nbytes)
            self._numbers.append(number)
            self._arenas.append(Arena(context.contract, layout, memory, gen, zeroed))

    def fill(self, place: int, inputs: CallInputs) -> None:
        """Put inputs and fresh poison in place."""
        self._arenas[place].fill(inputs)
        if self._calls[place] is None:
            arena = self._arenas[place]
            self._calls[place] = self._resident.bind(self._kernel, self._numbers[place], arena.layout, inputs.scalars)

    def call(self, *places: int, graph: bool = False) -> float:
        """Run the calls at ``places`` in order; seconds. Raises WorkerFailure."""
        calls = [c for p in places if (c := self._calls[p]) is not None]
        return self._resident.call(calls, self._context.options.call_seconds, graph=graph)

    def read(self, place: int, inputs: CallInputs, expected: Mapping[str, Expected]) -> Ran:
        """Copy the outputs out and look at everything that should not have changed."""
        arena = self._arenas[place]
        outputs = {}
        for tensor in self._context.contract.tensors:
            if tensor.role is not Role.IN and (found := arena.tensor(tensor.name)) is not None:
                outputs[tensor.name] = found.clone()
        return Ran(outputs, tuple(self._inspect(arena, inputs, expected)))

    def run(self, place: int, inputs: CallInputs, expected: Mapping[str, Expected], *, graph: bool = False) -> Ran:
        """Fill, call, read."""
        self.fill(place, inputs)
        self.call(place, graph=graph)
        return self.read(place, inputs, expected)

    def run_behind_late_inputs(
        self, place: int, inputs: CallInputs, expected: Mapping[str, Expected]
    ) -> tuple[Ran, str | None]:
        """Fill, call behind a kernel that lets the call start early and brings what it reads late, read. Also the name
        of a tensor that was written while that kernel ran. Only where ``starts_early``. Raises WorkerFailure."""
        self.fill(place, inputs)
        arena, call = self._arenas[place], self._calls[place]
        assert call is not None
        device = self._context.device
        front = late_inputs(self._context.contract, arena.layout, inputs, device, self._context.cache)
        early = self._resident.late(call, front, self._context.options.call_seconds)
        name = None if early is None else next(s.name for s in arena.layout.slots if s.offset <= early < s.end)
        return self.read(place, inputs, expected), name

    def snapshot(self, place: int) -> dict[str, torch.Tensor]:
        """Copies of what is written, as it is now."""
        arena = self._arenas[place]
        names = [t.name for t in self._context.contract.tensors if t.role is not Role.IN]
        return {name: found.clone() for name in names if (found := arena.tensor(name)) is not None}

    def _inspect(self, arena: Arena, inputs: CallInputs, expected: Mapping[str, Expected]) -> list[Finding]:
        findings: list[Finding] = []

        def add(code: str, message: str, tensor: str, index: tuple[int, ...] | None = None) -> None:
            dims = dict(self._shape.dims)
            findings.append(Finding(code=code, message=message, shape=dims, tensor=tensor, index=index))

        if (damage := arena.damaged_guard()) is not None:
            name, distance = damage
            where = f"{distance} bytes beyond its end" if distance > 0 else f"{-distance} bytes before its start"
            add("outside-buffer", f"wrote outside '{name}', {where}", name)
        for tensor in self._context.contract.tensors:
            now = arena.tensor(tensor.name)
            if now is None:
                continue
            if tensor.role is Role.OUT:
                unwritten = arena.unwritten(tensor.name)
                if (count := int(unwritten.sum())) > 0:
                    place = tuple(int(i) for i in unwritten.nonzero()[0])
                    share = f"{count} of {unwritten.numel()} elements"
                    message = f"{share} of '{tensor.name}' were not written, first {list(place)}"
                    add("not-written", message, tensor.name, place)
                continue
            before = inputs.tensors[tensor.name]
            assert before is not None
            if tensor.role is Role.IN:
                if (changed := first_difference(before, now)) is not None:
                    add(
                        "input-changed",
                        f"the input '{tensor.name}' was changed at {list(changed)}",
                        tensor.name,
                        changed,
                    )
            elif (changed := _first_change(expected[tensor.name], before, now)) is not None:
                message = (
                    f"'{tensor.name}' was changed at {list(changed)}; only {tensor.writes or 'its outputs'} may be"
                )
                add("undeclared-write", message, tensor.name, changed)
        if not arena.workspace_is_zero():
            message = "the workspace starts zeroed and must be left zeroed; it was not"
            add("workspace-not-zero", message, WORKSPACE)
        return findings


def _first_change(expected: Expected, before: torch.Tensor, now: torch.Tensor) -> tuple[int, ...] | None:
    device = expected.values.device
    return expected.first_change(before.to(device), now.to(device))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    """Index of the first element whose bits differ; None when there is none."""
    bits = _BITS[a.element_size()]
    different = a.cpu().view(bits) != b.cpu().view(bits)
    if not different.any():
        return None
    return tuple(int(i) for i in different.nonzero()[0])
