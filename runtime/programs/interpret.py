"""Running a program's steps with the framework's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kb.expr import parse
from runtime.errors import LoadError
from runtime.programs.program import Argument, Layout, Program, Ref, Size, Step

Environment = dict[str, Any]
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
    a model would run. Raises LoadError for an unknown operator, KeyError for a tensor that is missing.
    """
    start: Environment = {i.value: to_value(_need(tensors, i.tensor), i.layout, dims) for i in program.inputs}
    places: dict[str, list[torch.Tensor]] = {}
    for output in program.outputs:
        places.setdefault(output.value, []).append(to_value(_need(tensors, output.tensor), output.layout, dims))
    device = next(t.device for t in tensors.values() if t is not None)
    runs = [_Run(step, dims, places, device) for step in program.steps]
    direct = {run.step.outputs[0] for run in runs if run.direct is not None}
    copies = [
        (value, place) for value, found in places.items() for i, place in enumerate(found) if i or value not in direct
    ]

    def call() -> None:
        values = dict(start)
        for run in runs:
            run(values)
        for value, place in copies:
            place.copy_(values[value])

    return call


def run(program: Program, dims: Dims, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The program's outputs in order, computed from ``values`` (by the program's own names) as the framework does."""
    device = next(iter(values.values())).device
    known: Environment = dict(values)
    for step in program.steps:
        _Run(step, dims, {}, device)(known)
    return [known[output.value] for output in program.outputs]


class _Run:
    """One step, its operator found and its constant arguments made."""

    def __init__(self, step: Step, dims: Dims, places: Mapping[str, list[torch.Tensor]], device: torch.device) -> None:
        self.step = step
        self._dims = dims
        self._operator = operator(step.op)
        self._kwargs = {name: argument for name, argument in step.kwargs if name != "device"}
        self._device = {"device": device} if any(name == "device" for name, _ in step.kwargs) else {}
        self.direct: Any = None
        self._accepted: frozenset[str] = frozenset()
        self._place: torch.Tensor | None = None
        if len(step.outputs) == 1 and step.outputs[0] in places:
            self.direct = writing_overload(self._operator)
            self._place = places[step.outputs[0]][0]
        if self.direct is not None:
            self._accepted = frozenset(a.name for a in self.direct._schema.arguments)

    def __call__(self, values: Environment) -> None:
        args = [resolve(a, values, self._dims) for a in self.step.args]
        kwargs = {name: resolve(a, values, self._dims) for name, a in self._kwargs.items()}
        if self.direct is not None:
            kwargs = {name: value for name, value in kwargs.items() if name in self._accepted}
            values[self.step.outputs[0]] = self.direct(*args, **kwargs, out=self._place)
            return
        results = self._operator(*args, **kwargs, **self._device)
        if len(self.step.outputs) == 1 and isinstance(results, torch.Tensor):
            results = (results,)
        values.update(zip(self.step.outputs, results, strict=False))


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
