"""The graph as JSON data and back, so that a capture can be kept, compared and read by other tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from generator.ir.graph import Graph, GraphError
from generator.ir.node import Arg, Location, Node, Size, ValueRef
from generator.ir.value import Value, ValueKind

FORMAT = 1


def dump(graph: Graph) -> dict[str, Any]:
    """The graph as data that ``json.dumps`` takes; the same graph always gives the same data, in the same order."""
    return {
        "format": FORMAT,
        "extents": {name: list(bounds) for name, bounds in sorted(graph.extents.items())},
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "values": [_dump_value(graph.values[name]) for name in _value_order(graph)],
        "nodes": [_dump_node(node) for node in graph.nodes],
    }


def load(data: Mapping[str, Any]) -> Graph:
    """The graph that ``dump`` wrote. Raises GraphError on another format or on a graph that is not one."""
    if data.get("format") != FORMAT:
        raise GraphError(f"format {data.get('format')!r} is not {FORMAT}: write the graph again with this version")
    values = [
        Value(
            id=item["id"],
            shape=tuple(item["shape"]),
            dtype=item["dtype"],
            strides=tuple(item["strides"]),
            kind=ValueKind(item["kind"]),
            name=item.get("name", ""),
            producer=item.get("producer"),
            alias_of=item.get("alias_of"),
        )
        for item in data["values"]
    ]
    nodes = [
        Node(
            id=item["id"],
            op=item["op"],
            args=tuple(_load_arg(arg) for arg in item["args"]),
            kwargs=tuple((name, _load_arg(arg)) for name, arg in item["kwargs"].items()),
            outputs=tuple(item["outputs"]),
            mutates=tuple(item["mutates"]),
            where=None if item["where"] is None else Location(*item["where"]),
            module=item["module"],
        )
        for item in data["nodes"]
    ]
    return Graph(
        nodes=tuple(nodes),
        values={value.id: value for value in values},
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        extents={name: (low, high) for name, (low, high) in data["extents"].items()},
    )


def _value_order(graph: Graph) -> list[str]:
    return [*graph.inputs, *(value for node in graph.nodes for value in node.outputs)]


def _dump_value(value: Value) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": value.id,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "strides": list(value.strides),
        "kind": value.kind.value,
    }
    optional = {"name": value.name or None, "producer": value.producer, "alias_of": value.alias_of}
    return data | {key: item for key, item in optional.items() if item is not None}


def _dump_node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "op": node.op,
        "args": [_dump_arg(arg) for arg in node.args],
        "kwargs": {name: _dump_arg(arg) for name, arg in node.kwargs},
        "outputs": list(node.outputs),
        "mutates": list(node.mutates),
        "where": None if node.where is None else [node.where.file, node.where.line, node.where.function],
        "module": node.module,
    }


def _dump_arg(arg: Arg) -> Any:
    match arg:
        case ValueRef(id=value):
            return {"value": value}
        case Size(text=text):
            return {"size": text}
        case tuple():
            return [_dump_arg(item) for item in arg]
        case float() if not math.isfinite(arg):
            return {"float": str(arg)}  # JSON has no infinity
        case _:
            return arg


def _load_arg(data: Any) -> Arg:
    match data:
        case {"value": str(value)}:
            return ValueRef(value)
        case {"size": str(text)}:
            return Size(text)
        case {"float": str(text)}:
            return float(text)
        case Sequence() if not isinstance(data, str):
            return tuple(_load_arg(item) for item in data)
        case None | bool() | int() | float() | str():
            return data
        case _:
            raise GraphError(f"{data!r} is no argument")
