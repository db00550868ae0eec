"""The interface gate: a call touches what the contract says, all of it, and nothing else."""

from __future__ import annotations

from typing import ClassVar

from kb.contract import Role
from kb.dtype import DType
from kb.manifest import Finding, GateName, GateResult
from validator.gates.context import Context, describe, passed_or_failed
from validator.gates.rig import Rig, first_difference
from validator.inputs import make_inputs
from validator.references import reference
from validator.shapes import Shape


class InterfaceGate:
    """Two calls on different inputs in different buffers, then the first again, at every shape.

    Outputs are poisoned before each call; guards lie around each buffer; pointers have their least alignment. The
    outputs of the first call are compared after the second: a kernel that keeps results in memory of its own shows.
    """

    name: ClassVar[GateName] = GateName.INTERFACE
    needs_run: ClassVar[bool] = True

    def run(self, context: Context) -> GateResult:
        shapes = _few(context) if context.options.quick else context.shapes()
        findings: list[Finding] = []
        calls = 0
        for i, shape in enumerate(shapes):
            storage = context.storages[i % len(context.storages)] if context.options.quick else context.storages[0]
            context.progress(self.name, describe(shape, storage), i / len(shapes))
            findings += _try(context, shape, storage)
            calls += 3
            if findings:
                break
        return passed_or_failed(self.name, findings, shapes=len(shapes), calls=calls, layers=list(context.layers))


def _few(context: Context) -> list[Shape]:
    """The usual shape, a ragged and a hidden one, and every combination of tensors that are there and that are not."""
    shapes = context.shapes()
    chosen: list[Shape] = []
    seen: set[tuple[bool, ...]] = set()
    for i, shape in enumerate(shapes):
        present = tuple(context.contract.is_present(t, shape.dims) for t in context.contract.tensors)
        if i in (0, 1, len(shapes) - 1) or present not in seen:
            chosen.append(shape)
        seen.add(present)
    return chosen


def _try(context: Context, shape: Shape, storage: DType) -> list[Finding]:
    rig = Rig(context, shape, storage)
    first, second = (
        make_inputs(context.contract, shape.dims, storage, "normal", context.seed_for("interface", shape.dims, i))
        for i in (0, 1)
    )
    wanted = [reference(context.contract, shape.dims, inputs) for inputs in (first, second)]
    rig.fill(0, first)
    rig.call(0)
    ran = rig.read(0, first, wanted[0])
    if ran.findings:
        return list(ran.findings)
    rig.fill(1, second)
    rig.call(1)
    other = rig.read(1, second, wanted[1])
    if other.findings:
        return list(other.findings)
    after = rig.snapshot(0)
    for name, values in ran.outputs.items():
        if (place := first_difference(values, after[name])) is not None:
            message = f"a later call on other buffers changed '{name}' of this one at {list(place)}"
            return [
                Finding(code="result-changed-later", message=message, shape=dict(shape.dims), tensor=name, index=place)
            ]
    return list(rig.run(0, first, wanted[0]).findings)


def differences(context: Context, shape: Shape, one: object, other: object, what: str) -> list[Finding]:
    """A finding for the first written tensor that is not bit for bit the same in both."""
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    for tensor in context.contract.tensors:
        if tensor.role is Role.IN or tensor.name not in one:
            continue
        place = first_difference(one[tensor.name], other[tensor.name])
        if place is not None:
            a, b = float(one[tensor.name][place]), float(other[tensor.name][place])
            message = f"{what} gave different bits in '{tensor.name}' at {list(place)}: {a:.9g} and {b:.9g}"
            return [
                Finding(
                    code="not-deterministic", message=message, shape=dict(shape.dims), tensor=tensor.name, index=place
                )
            ]
    return []
