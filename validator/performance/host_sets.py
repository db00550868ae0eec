"""Input sets for timing on a CPU, in one block of memory that judge and worker share.

Tensors that sets have in common (a cache that is only read) lie there once. Before every round of samples all
activations are drawn anew, so that a call never sees contents it has seen: results that a kernel keeps somewhere (its
workspace, its stack, freed memory) are of no use to it. The library path runs on the same contents in the same round,
and what the two give is compared after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from kb.contract import Contract, Role
from kb.dtype import DType
from kb.manifest import Finding
from validator.arena import WORKSPACE, Layout, Slot, nan_bytes
from validator.gates.context import Context
from validator.inputs import CallInputs, make_timing_inputs
from validator.numerics import judge_outputs, truth_of
from validator.numerics.errors import EPS, error_of, row_scale
from validator.shapes import Shape
from validator.worker import Resident

_ALIGN = 256
# Activations are small; a tensor beyond this is a weight or a cache and keeps its contents.
_DRAWN_BYTES = 1 << 20
# Candidate and library path, both checked against the truth before, may differ by so many roundings in a timed call.
# What was not computed, or computed from other inputs, is as wrong as it is large.
_ROUNDINGS_APART = 8.0


@dataclass(slots=True)
class HostSet:
    """One set: views on the shared memory, the bound call, and what is put in place before a round.

    ``drawn``: mean and standard deviation of the tensors whose contents change. ``before``: what updated tensors hold
    before a call.
    """

    inputs: CallInputs
    call: int
    drawn: Mapping[str, tuple[float, float]]
    before: dict[str, torch.Tensor]


class HostSets:
    """Sets of one shape, loaded and bound in a resident."""

    def __init__(
        self,
        context: Context,
        resident: Resident,
        shape: Shape,
        storage: DType,
        *,
        min_bytes: int,
        most: int,
        seed: int,
    ) -> None:
        contract = context.contract
        self._contract, self._shape, self._storage, self._context = contract, shape, storage, context
        self._resident = resident
        self._gen = torch.Generator().manual_seed(seed)
        compiled = context.compiled(shape, storage)
        resident.drop()
        kernel, _ = resident.load(compiled)
        made = make_timing_inputs(
            contract,
            shape.dims,
            storage,
            "cpu",
            min_bytes,
            seed=seed,
            max_sets=most + 1,
            max_allocated_bytes=(1 if context.options.quick else 4) << 29,
        )
        self.cold = (len(made) - 1) * contract.bytes_moved(shape.dims, storage) >= min_bytes
        layouts, total = _lay_out(contract, storage, made, compiled.workspace_bytes)
        number, memory = resident.share(total)
        self._zeroed = context.candidate.plan.workspace.zeroed == "once"
        self._workspace = _workspace_view(memory, layouts[0])
        self.sets: list[HostSet] = []
        filled: set[int] = set()
        places = Counter(slot.offset for layout in layouts for slot in layout.slots)
        for inputs, layout in zip(made, layouts, strict=True):
            views = {s.name: _view(memory, s) for s in layout.slots}
            for name, values in inputs.tensors.items():
                if values is not None and (slot := layout.slot(name)) is not None and slot.offset not in filled:
                    views[name].copy_(values)
                    filled.add(slot.offset)
            shared = CallInputs({n: views.get(n) for n in inputs.tensors}, inputs.scalars)
            call = resident.bind(kernel, number, layout, inputs.scalars)
            alone = {slot.name for slot in layout.slots if places[slot.offset] == 1}
            self.sets.append(self._set(shared, alone, call))
        # One set is for the call before a sample, which wakes threads and warms what the sample finds warm in use.
        self.warming = self.sets.pop()

    @property
    def calls(self) -> list[int]:
        """The bound calls, one a set."""
        return [item.call for item in self.sets]

    def verify(self, most: int) -> list[Finding]:
        """Judge ``most`` sets against the truth."""
        self.draw()
        for item in self.sets[:most]:
            truth = truth_of(
                self._contract, self._shape.dims, self._storage, _copied(item.inputs), self._context.baselines()
            )
            self._resident.call([item.call], self._context.options.call_seconds)
            outputs = {name: values.clone() for name, values in self._written(item.inputs).items()}
            judged = judge_outputs(self._contract, self._shape.dims, self._storage, "timed shape", truth, outputs)
            if judged.findings:
                return list(judged.findings)
        return []

    def draw(self) -> None:
        """New contents everywhere, and poison where outputs go and in the workspace."""
        for item in (*self.sets, self.warming):
            for name, (mean, deviation) in item.drawn.items():
                target = item.before[name] if name in item.before else item.inputs.tensors[name]
                assert target is not None
                target.copy_(torch.randn(target.shape, generator=self._gen) * deviation + mean)
        self.reset()

    def reset(self) -> None:
        """Updated tensors as they were before the calls of this round; outputs and workspace poisoned."""
        for item in self.sets:
            for name, values in item.before.items():
                target = item.inputs.tensors[name]
                assert target is not None
                target.copy_(values)
            for tensor in self._contract.tensors:
                out = item.inputs.tensors.get(tensor.name)
                if tensor.role is Role.OUT and out is not None:
                    raw = out.view(-1).view(torch.uint8)
                    raw.copy_(nan_bytes(raw.numel(), self._gen))
        if self._workspace is not None and not self._zeroed:
            self._workspace.copy_(nan_bytes(self._workspace.numel(), self._gen))

    def first_difference(self, others: Sequence[CallInputs]) -> str | None:
        """The first output that is not what ``others`` (the library path's, set by set) hold; None when all are."""
        if self._zeroed and self._workspace is not None and bool(self._workspace.any()):
            return "the workspace was not left zeroed"
        for i, (item, other) in enumerate(zip(self.sets, others, strict=True)):
            wanted = self._written(other)
            slots = item.inputs.tensors.get("slot_mapping")
            for name, got in self._written(item.inputs).items():
                if not got.is_floating_point():
                    continue
                if _apart(_written_rows(name, got, slots), _written_rows(name, wanted[name], slots)):
                    return f"'{name}' of input set {i} is not what was asked for"
        return None

    def _set(self, shared: CallInputs, alone: Collection[str], call: int) -> HostSet:
        """``alone``: the tensors that no other set shares."""
        drawn: dict[str, tuple[float, float]] = {}
        before: dict[str, torch.Tensor] = {}
        for tensor in self._contract.tensors:
            values = shared.tensors.get(tensor.name)
            if values is None or tensor.role is Role.OUT:
                continue
            small = values.numel() * values.element_size() <= _DRAWN_BYTES
            if tensor.role is Role.INOUT and not tensor.name.endswith("_cache"):
                before[tensor.name] = values.clone()
            elif tensor.role is Role.INOUT:
                continue  # a cache's slots are written whatever they held
            if tensor.dtype is DType.T and tensor.name in alone and (small or tensor.name in before):
                wide = values.float()
                drawn[tensor.name] = float(wide.mean()), float(wide.std(correction=0))
        return HostSet(shared, call, drawn, before)

    def _written(self, inputs: CallInputs) -> dict[str, torch.Tensor]:
        names = [t.name for t in self._contract.tensors if t.role is not Role.IN]
        return {name: values for name in names if (values := inputs.tensors.get(name)) is not None}


def _written_rows(name: str, values: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
    """The rows of a cache that the step writes; anything else whole."""
    if slots is None or not name.endswith("_cache"):
        return values
    return values.flatten(0, 1)[slots.long()]


def _apart(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two results of one computation differ by more than rounding, or one is not finite where the other is."""
    if not torch.equal(torch.isfinite(got), torch.isfinite(wanted)):
        return True
    truth = wanted.double().nan_to_num(0, 0, 0)
    eps = EPS[{torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16}.get(got.dtype, DType.FLOAT32)]
    # In float32 all that differs is the order of sums.
    allowed = _ROUNDINGS_APART * (eps if got.dtype != torch.float32 else 64 * eps)
    return error_of(got.nan_to_num(0, 0, 0), truth, row_scale(truth)).typical > allowed


def _lay_out(
    contract: Contract, storage: DType, sets: Sequence[CallInputs], workspace_bytes: int
) -> tuple[list[Layout], int]:
    """Slots for every set, one for each distinct tensor; the workspace is shared, as calls never overlap."""
    known: dict[int, int] = {}
    cursor = 0

    def place(nbytes: int) -> int:
        nonlocal cursor
        start = cursor
        cursor = -(-(cursor + nbytes) // _ALIGN) * _ALIGN + _ALIGN
        return start

    workspace = place(workspace_bytes) if workspace_bytes else 0
    slots_of: list[list[Slot]] = []
    for inputs in sets:
        slots = []
        for tensor in contract.tensors:
            values = inputs.tensors.get(tensor.name)
            if values is None:
                continue
            nbytes = values.numel() * values.element_size()
            if values.data_ptr() not in known:
                known[values.data_ptr()] = place(nbytes)
            dtype = tensor.dtype.bind(storage).value
            slots.append(Slot(tensor.name, known[values.data_ptr()], nbytes, dtype, tuple(values.shape)))
        if workspace_bytes:
            slots.append(Slot(WORKSPACE, workspace, workspace_bytes, "uint8", (workspace_bytes,)))
        slots_of.append(slots)
    total = -(-max(cursor, 1) // 4096) * 4096
    return [Layout(tuple(slots), total) for slots in slots_of], total


def _workspace_view(memory: torch.Tensor, layout: Layout) -> torch.Tensor | None:
    slot = layout.slot(WORKSPACE)
    return None if slot is None else memory[slot.offset : slot.end]


def _view(memory: torch.Tensor, slot: Slot) -> torch.Tensor:
    return memory[slot.offset : slot.end].view(getattr(torch, slot.dtype)).view(slot.shape)


def _copied(inputs: CallInputs) -> CallInputs:
    """Small tensors copied, so that what is judged cannot change under the judge; large ones are only read."""
    copies: Mapping[str, torch.Tensor | None] = {
        name: t.clone() if t is not None and t.numel() * t.element_size() <= _DRAWN_BYTES else t
        for name, t in inputs.tensors.items()
    }
    return CallInputs(copies, inputs.scalars)
