"""Running a captured graph node by node in the framework: what a capture leaves out would show as another result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from generator.ir import Arg, Graph, Size, ValueKind, ValueRef


def replay(graph: Graph, program: torch.export.ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """The graph's outputs for these arguments, by input name. Buffers and arguments that it writes are written."""
    stored = {**program.state_dict, **program.constants}
    values: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for name in graph.inputs:
        value = graph.values[name]
        values[name] = inputs[value.name] if value.kind is ValueKind.INPUT else stored[value.name]
        for extent, size in zip(value.shape, values[name].shape, strict=True):
            if isinstance(extent, str):
                sizes.setdefault(extent, size)

    def concrete(arg: Arg) -> Any:
        match arg:
            case ValueRef(id=name):
                return values[name]
            case Size(text=text):
                return eval(text, {}, sizes)
            case tuple():
                return [concrete(item) for item in arg]
            case str() if arg.startswith("torch."):
                return getattr(torch, arg.removeprefix("torch."))
        return arg

    for node in graph.nodes:
        namespace, packet, overload = node.op.split(".")
        call = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        result = call(*(concrete(arg) for arg in node.args), **{name: concrete(arg) for name, arg in node.kwargs})
        results = result if isinstance(result, (tuple, list)) else (result,)
        values.update(zip(node.outputs, results, strict=False))
    return [values[name] for name in graph.outputs]
