"""Input sets for timing on a CPU, in one block of memory that judge and worker share.

Tensors that sets have in common (a cache that is only read) lie there once. Every set has two versions of its
activations with the outputs that belong to each; which one a timed call will find is decided just before it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kb.contract import Contract, Role
from kb.dtype import DType
from kb.manifest import Finding
from validator.arena import WORKSPACE, Layout, Slot, nan_bytes
from validator.gates.context import Context
from validator.inputs import CallInputs, make_timing_inputs
from validator.numerics import judge_outputs, truth_of
from validator.shapes import Shape
from validator.worker import Resident

_ALIGN = 256
# Activations are small; a tensor beyond this is a weight or a cache and keeps its contents.
_VERSIONED_BYTES = 1 << 20


@dataclass(slots=True)
class HostSet:
    """One set: views on the shared memory, the bound call, and what each version holds and gives."""

    inputs: CallInputs
    call: int
    versions: list[dict[str, torch.Tensor]]
    before: dict[str, torch.Tensor]
    golden: list[dict[str, torch.Tensor]] = field(default_factory=list)
    version: int = 0


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
        self._chooser = random.Random(seed)  # noqa: S311 - the candidate never sees it
        self._gen = torch.Generator().manual_seed(seed % (1 << 62))
        compiled = context.compiled(shape, storage)
        resident.drop()
        kernel, _ = resident.load(compiled)
        made = make_timing_inputs(
            contract, shape.dims, storage, "cpu", min_bytes, seed=seed, max_sets=most, max_allocated_bytes=2 << 30
        )
        self.cold = len(made) * contract.bytes_moved(shape.dims, storage) >= min_bytes
        layouts, total = _lay_out(contract, storage, made, compiled.workspace_bytes)
        number, memory = resident.share(total)
        self._zeroed = context.candidate.plan.workspace.zeroed == "once"
        self._workspace = _workspace_view(memory, layouts[0])
        self.sets: list[HostSet] = []
        self.nbytes = total
        filled: set[int] = set()
        places = Counter(slot.offset for layout in layouts for slot in layout.slots)
        for i, (inputs, layout) in enumerate(zip(made, layouts, strict=True)):
            views = {s.name: _view(memory, s) for s in layout.slots}
            for name, values in inputs.tensors.items():
                if values is not None and (slot := layout.slot(name)) is not None and slot.offset not in filled:
                    views[name].copy_(values)
                    filled.add(slot.offset)
            shared = CallInputs({n: views.get(n) for n in inputs.tensors}, inputs.scalars)
            call = resident.bind(kernel, number, layout, inputs.scalars)
            alone = {slot.name for slot in layout.slots if places[slot.offset] == 1}
            self.sets.append(self._versions(shared, alone, call, seed + 1000 + i))

    @property
    def idempotent(self) -> bool:
        """Whether a second call on the same buffers gives the same outputs."""
        return all(t.role is not Role.INOUT or t.writes == "the slots of slot_mapping" for t in self._contract.tensors)

    @property
    def remembers(self) -> bool:
        """Whether something of one call can reach the next: then no input may be seen twice in a sample."""
        return self._workspace is not None

    def verify(self) -> list[Finding]:
        """Judge every set in both versions, and keep what it gave as what timed calls must give."""
        findings: list[Finding] = []
        for item in self.sets:
            for version in range(len(item.versions)):
                self._put(item, version)
                self._forget()
                truth = truth_of(
                    self._contract, self._shape.dims, self._storage, _copied(item.inputs), self._context.baselines()
                )
                self._resident.call([item.call], self._context.options.call_seconds)
                outputs = self._outputs(item)
                judged = judge_outputs(self._contract, self._shape.dims, self._storage, "timed shape", truth, outputs)
                findings += judged.findings
                item.golden.append(outputs)
                if findings:
                    return findings
        return findings

    def arm_candidate(self) -> list[int]:
        """Choose versions, put them in place with fresh poison, and give the calls to make.

        The workspace is poisoned (or zeroed) too: a kernel that kept results in it has lost them.
        """
        self._forget()
        for item in self.sets:
            self._put(item, self._chooser.randrange(len(item.versions)))
        return [item.call for item in self.sets]

    def wrong_output(self) -> str | None:
        """The first output that is not, bit for bit, what the version in place gives; None when all are."""
        if self._zeroed and self._workspace is not None and bool(self._workspace.any()):
            return "the workspace, which must be left zeroed,"
        for i, item in enumerate(self.sets):
            for name, golden in item.golden[item.version].items():
                now = item.inputs.tensors[name]
                assert now is not None
                if not torch.equal(now.view(torch.uint8), golden.view(torch.uint8)):
                    return f"'{name}' of input set {i}"
        return None

    def _forget(self) -> None:
        if self._workspace is None:
            return
        if self._zeroed:
            self._workspace.zero_()
        else:
            self._workspace.copy_(nan_bytes(self._workspace.numel(), self._gen))

    def _versions(self, shared: CallInputs, alone: Collection[str], call: int, seed: int) -> HostSet:
        """A set with a second version of its activations: the same values in another order, so equally well scaled.

        ``alone``: the tensors that no other set shares.
        """
        gen = torch.Generator().manual_seed(seed % (1 << 62))
        first: dict[str, torch.Tensor] = {}
        second: dict[str, torch.Tensor] = {}
        before: dict[str, torch.Tensor] = {}
        for tensor in self._contract.tensors:
            values = shared.tensors.get(tensor.name)
            if values is None or tensor.role is Role.OUT:
                continue
            if tensor.role is Role.INOUT and not self.idempotent:
                before[tensor.name] = values.clone()
            elif (
                tensor.dtype is DType.T
                and tensor.name in alone
                and values.numel() * values.element_size() <= _VERSIONED_BYTES
            ):
                first[tensor.name] = values.clone()
                order = torch.randperm(values.numel(), generator=gen)
                second[tensor.name] = values.flatten()[order].view(values.shape).clone()
        return HostSet(shared, call, [first, second] if first else [{}], before)

    def _put(self, item: HostSet, version: int) -> None:
        for name, values in item.versions[version].items():
            target = item.inputs.tensors[name]
            assert target is not None
            target.copy_(values)
        item.version = version
        for name, values in item.before.items():
            target = item.inputs.tensors[name]
            assert target is not None
            target.copy_(values)
        for tensor in self._contract.tensors:
            values_ = item.inputs.tensors.get(tensor.name)
            if tensor.role is Role.OUT and values_ is not None:
                raw = values_.view(-1).view(torch.uint8)
                raw.copy_(nan_bytes(raw.numel(), self._gen))

    def _outputs(self, item: HostSet) -> dict[str, torch.Tensor]:
        names = [t.name for t in self._contract.tensors if t.role is not Role.IN]
        return {n: values.clone() for n in names if (values := item.inputs.tensors.get(n)) is not None}


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
        name: t.clone() if t is not None and t.numel() * t.element_size() <= _VERSIONED_BYTES else t
        for name, t in inputs.tensors.items()
    }
    return CallInputs(copies, inputs.scalars)
