"""The float64 truth of a contract that is stated by a program: the program with every rounding taken out but one kind.

A framework rounds each operator's result to the storage type. That is how it computes, not what is meant: no
intermediate result is rounded here, as in every other reference. Two roundings are meant and are binding points: a
conversion to a narrower type that the model itself writes down, unless what it gives is only returned; and a result
that is stored in a narrow type and read again, because whoever reads the tensor reads the rounded one.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.programs import Program, Step
from runtime.programs.interpret import from_value, operator, resolve, to_value
from runtime.programs.program import names
from validator.references.arithmetic import gelu, rounded
from validator.references.call import Call
from validator.references.expected import Expected

_NARROW = (torch.bfloat16, torch.float16)
_CASTS = ("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")


def run_wide(program: Program, call: Call) -> dict[str, Expected]:
    """Expected contents of every output, float64. Raises KeyError when a tensor is missing."""
    values: dict[str, Any] = {}
    for given in program.inputs:
        values[given.value] = _wide(to_value(call[given.tensor], given.layout, call.dims))
    unrounded: dict[str, torch.Tensor] = {}
    device = next(t.device for t in call.tensors.values() if t is not None)
    for step in program.steps:
        _run(step, program, values, unrounded, call, device)
    found = {}
    for output in program.outputs:
        value = unrounded.get(output.value, values[output.value])
        shape = tuple(e.evaluate_int(call.dims) for e in output.layout.stored)
        found[output.tensor] = Expected(from_value(_wide(value), output.layout, shape))
    return found


def rounding_values(program: Program) -> tuple[str, ...]:
    """The values at which the binding rounding points are, in the order they are computed."""
    stored = {o.value for o in program.outputs if o.rounded}
    return tuple(
        name
        for step in program.steps
        for name in step.outputs
        if name in stored or (_narrowed(step) is not None and program.uses(name))
    )


def _run(
    step: Step,
    program: Program,
    values: dict[str, Any],
    unrounded: dict[str, torch.Tensor],
    call: Call,
    device: torch.device,
) -> None:
    if (narrow := _narrowed(step)) is not None:
        source = resolve(step.args[0], values, call.dims)
        name = step.outputs[0]
        unrounded[name] = source
        values[name] = rounded(source, narrow) if program.uses(name) else source
        return
    args = [_double(resolve(a, values, call.dims)) for a in step.args]
    kwargs = {name: _double(resolve(a, values, call.dims)) for name, a in step.kwargs if name != "device"}
    if any(name == "device" for name, _ in step.kwargs):
        kwargs["device"] = device
    if step.op in ("aten._softmax.default", "aten._log_softmax.default"):
        args[2] = False  # half_to_float: the input is float64 already
    results = (gelu if step.op == "aten.gelu.default" else operator(step.op))(*args, **kwargs)
    if isinstance(results, torch.Tensor):
        results = (results,)
    stored = {o.value: getattr(torch, o.rounded) for o in program.outputs if o.rounded}
    for name, result in zip(step.outputs, results, strict=False):
        values[name] = _wide(result)
        if name in stored:
            unrounded[name] = values[name]
            values[name] = rounded(values[name], stored[name])
        kept = [unrounded[n] for a in step.args for n in names(a) if n in unrounded]
        if step.op in _VIEWS and kept:  # a view of a value that is only returned is only returned too
            unrounded[name] = operator(step.op)(kept[0], *args[1:], **kwargs)


# Operators that move no bits: what they give is as rounded as what they are given.
_VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.permute.default", "aten.unsqueeze.default")


def _narrowed(step: Step) -> torch.dtype | None:
    """The narrow type a step converts to; None for every other step."""
    if step.op not in _CASTS:
        return None
    wanted = next((a for name, a in step.kwargs if name == "dtype"), step.args[1] if len(step.args) > 1 else None)
    found = getattr(torch, wanted.removeprefix("torch."), None) if isinstance(wanted, str) else None
    return found if found in _NARROW else None


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _double(argument: Any) -> Any:
    """A dtype argument that asks for a floating type asks for float64 here."""
    return torch.float64 if isinstance(argument, torch.dtype) and argument.is_floating_point else argument
