"""The interface gate: a call touches what the contract says, all of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from kb.contract import Role
from kb.dtype import DType
from kb.manifest import Finding, GateName, GateResult
from validator.gates.context import Context, describe, passed_or_failed
from validator.gates.rig import Ran, Rig, first_difference, truth_device
from validator.inputs import CallInputs, make_inputs
from validator.references import Expected, reference
from validator.shapes import Shape


class InterfaceGate:
    """Two calls on different inputs in different buffers, then the first again, at every shape.

    Outputs are poisoned before each call; guards lie around each buffer; pointers have their least alignment. The
    outputs of the first call are compared after the second: a kernel that keeps results in memory of its own shows.
    One that may start before the kernel in front of it has ended runs behind one that brings its inputs late.
    """

    name: ClassVar[GateName] = GateName.INTERFACE
    needs_run: ClassVar[bool] = True

    def run(self, context: Context) -> GateResult:
        pairs = few_pairs(context) if context.options.quick else [(s, context.storages[0]) for s in context.shapes()]
        findings: list[Finding] = []
        calls = 0
        for i, (shape, storage) in enumerate(pairs):
            context.progress(self.name, describe(shape, storage), i / len(pairs))
            findings += _try(context, shape, storage)
            calls += 3
            if findings:
                break
        return passed_or_failed(self.name, findings, shapes=len(pairs), calls=calls, layers=list(context.layers))


def few_pairs(context: Context) -> list[tuple[Shape, DType]]:
    """What a quick judgement takes of the pairs that numerics will try, whose images are then there.

    The usual shape, a ragged and a hidden one; and whatever differs from those before it in its variant or in which
    tensors are there: a kernel has a way of its own for each.
    """
    contract = context.contract
    shapes = context.shapes()
    chosen: list[tuple[Shape, DType]] = []
    seen: set[object] = set()
    for i, (shape, storage) in enumerate(context.pairs()[: len(shapes)]):
        variant = contract.variant_for(shape.dims)
        kinds = {
            ("variant", variant.id if variant else ""),
            ("present", tuple(contract.is_present(t, shape.dims) for t in contract.tensors)),
        }
        if i in (0, 1, len(shapes) - 1) or not kinds <= seen:
            chosen.append((shape, storage))
        seen |= kinds
    return chosen


def _try(context: Context, shape: Shape, storage: DType) -> list[Finding]:
    rig = Rig(context, shape, storage)
    first, second = (
        make_inputs(
            context.contract,
            shape.dims,
            storage,
            "normal",
            context.seed_for("interface", shape.dims, i),
            truth_device(context, shape),
        )
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
    again = rig.run(0, first, wanted[0])
    if again.findings or not rig.starts_early:
        return list(again.findings)
    return _behind_late_inputs(rig, shape, first, wanted[0], again)


def _behind_late_inputs(
    rig: Rig, shape: Shape, inputs: CallInputs, wanted: Mapping[str, Expected], usual: Ran
) -> list[Finding]:
    """The same call as ``usual``, dependent on a kernel that writes its inputs only long after it has been let in."""
    late, early = rig.run_behind_late_inputs(0, inputs, wanted)
    if early is not None:
        message = f"'{early}' was written before griddepcontrol.wait, while the kernel in front may still read it"
        return [Finding(code="written-early", message=message, shape=dict(shape.dims), tensor=early)]
    if late.findings:
        return list(late.findings)
    for name, values in usual.outputs.items():
        if (place := first_difference(values, late.outputs[name])) is not None:
            message = (
                f"'{name}' at {list(place)} is another when the inputs arrive late: something the kernel in front "
                "writes is read before griddepcontrol.wait"
            )
            return [Finding(code="read-early", message=message, shape=dict(shape.dims), tensor=name, index=place)]
    return []


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
