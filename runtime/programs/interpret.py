"""Running a program's steps with the framework's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from kb.expr import parse
from runtime.errors import LoadError
from runtime.programs.program import Argument, Layout, Program, Ref, Size

Dims = Mapping[str, int]


def operator(name: str) -> Any:
    """The operator overload called ``name``, such as ``aten.mul.Tensor``. Raises LoadError when there is none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        raise LoadError(f"the framework has no operator '{name}'") from None


def resolve(argument: Argument, values: Mapping[str, Any], dims: Dims) -> Any:
    """The Python object an argument stands for."""
    match argument:
        case Ref(name=name):
            return values[name]
        case Size(text=text):
            return parse(text).evaluate_int(dims)
        case tuple():
            return [resolve(a, values, dims) for a in argument]
        case str() if argument.startswith("torch."):
            return getattr(torch, argument.removeprefix("torch."))
        case _:
            return argument


def to_value(tensor: torch.Tensor, layout: Layout, dims: Dims) -> torch.Tensor:
    """The program's value that lies in ``tensor``; a view."""
    physical = tensor.reshape([e.evaluate_int(dims) for e in layout.physical])
    back = [layout.order.index(i) for i in range(len(layout.order))]
    return physical.permute(back).expand([e.evaluate_int(dims) for e in layout.shape])


def from_value(value: torch.Tensor, layout: Layout, shape: tuple[int, ...]) -> torch.Tensor:
    """What a tensor of ``shape`` holds where ``value`` lies in it."""
    return value.permute(list(layout.order)).reshape(shape)


def prepare(program: Program, dims: Dims, tensors: Mapping[str, torch.Tensor | None]) -> Callable[[], None]:
    """A call without arguments that runs the program over ``tensors``, operator by operator.

    An output's operator writes it in place where the framework has such an operator, so that no copy is added to what
    a model would run. The calls stand one after the other in generated code, as in a captured module: nothing is
    interpreted while it is timed. Raises LoadError for an unknown operator, KeyError for a tensor that is missing.
    """
    given = [to_value(_need(tensors, i.tensor), i.layout, dims) for i in program.inputs]
    places = [to_value(_need(tensors, o.tensor), o.layout, dims) for o in program.outputs]
    device = next(t.device for t in tensors.values() if t is not None)
    function = _written(program, dims, device, in_place=True)
    arguments = (*given, *places)

    def call() -> None:
        function(*arguments)

    return call


def run(program: Program, dims: Dims, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The program's outputs in order, computed from its inputs' ``values`` as the framework does."""
    return tuple(_written(program, dims, values[0].device, in_place=False)(*values))


def _written(program: Program, dims: Dims, device: torch.device, *, in_place: bool) -> Callable[..., Any]:
    """The program as code: its inputs and, ``in_place``, memory for its outputs as arguments."""
    graph = fx.Graph()
    values = {i.value: graph.placeholder(i.value) for i in program.inputs}
    places = [graph.placeholder(f"place{n}") for n, _ in enumerate(program.outputs)] if in_place else []
    waiting = {o.value: place for o, place in zip(program.outputs, places, strict=False)}
    left = list(zip(program.outputs, places, strict=False))
    for step in program.steps:
        found = operator(step.op)
        args = tuple(resolve(a, values, dims) for a in step.args)
        kwargs = {name: resolve(a, values, dims) for name, a in step.kwargs if name != "device"}
        direct = writing_overload(found) if len(step.outputs) == 1 and step.outputs[0] in waiting else None
        if direct is not None:
            accepted = {a.name for a in direct._schema.arguments}
            kwargs = {name: value for name, value in kwargs.items() if name in accepted}
            place = waiting[step.outputs[0]]
            values[step.outputs[0]] = graph.call_function(direct, args, {**kwargs, "out": place})
            left = [item for item in left if item[1] is not place]
            continue
        if any(name == "device" for name, _ in step.kwargs):
            kwargs["device"] = device
        result = graph.call_function(found, args, kwargs)
        if len(step.outputs) == 1 and len(found._schema.returns) == 1:
            values[step.outputs[0]] = result
        else:
            for number, name in enumerate(step.outputs):
                values[name] = graph.call_function(getitem, (result, number))
    for output, place in left:
        graph.call_method("copy_", (place, values[output.value]))
    graph.output(None if in_place else tuple(values[o.value] for o in program.outputs))
    function: Callable[..., Any] = fx.GraphModule(torch.nn.Module(), graph).forward
    return function


def writing_overload(found: Any) -> Any:
    """The overload of an operator that writes into memory it is given, None where there is none that is as good.

    Overloads that a generator made from the allocating one compute elsewhere and copy; they are no better than that.
    """
    packet = found.overloadpacket
    names = ("out", f"{found._overloadname}_out")
    for name in names:
        candidate = getattr(packet, name, None) if name in packet.overloads() else None
        if candidate is None or torch.Tag.generated in candidate.tags:
            continue
        wanted = [(a.name, str(a.type)) for a in found._schema.arguments if a.name not in _CREATION]
        given = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out and a.name not in _CREATION]
        if wanted == given and len(candidate._schema.returns) == 1:
            return candidate
    return None


_CREATION = ("dtype", "layout", "device", "pin_memory", "memory_format")


def _need(tensors: Mapping[str, torch.Tensor | None], name: str) -> torch.Tensor:
    found = tensors.get(name)
    if found is None:
        raise KeyError(f"the program needs '{name}', which was not given")
    return found


__all__ = ["from_value", "operator", "prepare", "resolve", "run", "to_value", "writing_overload"]
