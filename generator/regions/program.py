"""A region of the graph as a program: the same operators under names that do not depend on where the region is.

Layers that compute the same thing give equal programs, and so one contract, judged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from generator.ir import Arg, Graph, Node, Value, ValueKind, ValueRef
from generator.ir import Size as GraphSize
from generator.regions.layout import layout_of, size_expr
from generator.regions.unsupported import UnsupportedRegionError
from kb.expr import Expr
from runtime.programs import Argument, Content, Input, Layout, Output, Program, Ref, Size, Step

if TYPE_CHECKING:
    from generator.analyze import Region

# Positions of arguments that must be positive for the operator to say anything.
_POSITIVE = frozenset({"aten.rsqrt", "aten.sqrt", "aten.log", "aten.log2", "aten.log10"})
_NARROW = ("bfloat16", "float16")
_WIDEST_INDEX = 1024


def region_program(region: Region, graph: Graph) -> tuple[Program, Mapping[str, str]]:
    """The program of a region, and the graph's value behind every tensor of its contract.

    Raises UnsupportedRegionError where a value has no place in a contract.
    """
    nodes = [graph.node(n) for n in region.nodes]
    read, written = graph.crossing(region.nodes)
    inside = frozenset(region.nodes)
    naming = _Names()
    bound: dict[str, str] = {}
    inputs = []
    for value_id in read:
        value = graph.values[value_id]
        tensor = naming.tensor("w" if value.kind is ValueKind.PARAMETER else "x")
        bound[tensor] = value_id
        content, upper = _content(value, graph, inside)
        inputs.append(Input(tensor, naming.value(value_id), layout_of(value), content, upper))
    steps = tuple(_step(node, naming) for node in nodes)
    outputs = []
    for value_id in written:
        tensor = naming.tensor("out")
        bound[tensor] = value_id
        value = graph.values[value_id]
        read_again = value.dtype in _NARROW and any(n.id in inside for n in graph.users(value_id))
        rounded = value.dtype if read_again else ""
        outputs.append(Output(tensor, naming.value(value_id), _output_layout(value), rounded))
    return Program(tuple(inputs), steps, tuple(outputs)), bound


class _Names:
    """Names by order of appearance."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def value(self, value_id: str) -> str:
        return self._values.setdefault(value_id, f"v{len(self._values)}")

    def tensor(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}{number}"


def _step(node: Node, naming: _Names) -> Step:
    if node.mutates:
        raise UnsupportedRegionError(f"{node.op} changes its argument in place")
    args = tuple(_argument(a, naming) for a in node.args)
    kwargs = tuple((name, _argument(a, naming)) for name, a in sorted(node.kwargs) if name != "pin_memory")
    return Step(node.op, args, kwargs, tuple(naming.value(v) for v in node.outputs))


def _argument(arg: Arg, naming: _Names) -> Argument:
    match arg:
        case ValueRef(id=value_id):
            return Ref(naming.value(value_id))
        case GraphSize(text=text):
            return Size(size_expr(text).text)
        case tuple():
            return tuple(_argument(a, naming) for a in arg)
        case _:
            return arg


def _output_layout(value: Value) -> Layout:
    if value.alias_of is not None and value.producer is None:
        raise UnsupportedRegionError(f"'{value.id}' is returned as it was given")
    layout = layout_of(value)
    ordered = (layout.shape[i] for i in layout.order)
    if any(p.text == "1" and s.text != "1" for p, s in zip(layout.physical, ordered, strict=True)):
        raise UnsupportedRegionError(f"'{value.id}' is returned with repeated elements")
    return layout


def _content(value: Value, graph: Graph, inside: frozenset[str]) -> tuple[Content, Expr]:
    """What a tried call puts into a tensor, from its origin and from who reads it."""
    one = Expr("1")
    users = [n for n in graph.users(value.id) if n.id in inside]
    if value.dtype in ("int64", "int32"):
        return Content.INDEX, _upper(users, graph)
    if any(n.target in _POSITIVE for n in users):
        return Content.POSITIVE, one
    trained = graph.root(value.id).kind is ValueKind.PARAMETER
    if not trained:
        return Content.ACTIVATION, one
    if value.rank >= 2:
        return Content.WEIGHT, one
    multiplied = any(n.target == "aten.mul" or _is_gamma(n, value.id) for n in users)
    return (Content.GAMMA if multiplied else Content.BIAS), one


def _upper(users: list[Node], graph: Graph) -> Expr:
    """One more than the largest index that may be drawn."""
    for node in users:
        if node.target in ("aten.embedding", "aten.index_select", "aten.gather") and isinstance(node.args[0], ValueRef):
            axis = 0 if node.target == "aten.embedding" else node.args[1]
            if isinstance(axis, int):
                return size_expr(graph.values[node.args[0].id].shape[axis])
    return Expr(str(_WIDEST_INDEX))


def _is_gamma(node: Node, value_id: str) -> bool:
    """Whether a norm multiplies by the value."""
    norms = ("aten.native_layer_norm", "aten.layer_norm", "aten.rms_norm")
    return node.target in norms and len(node.args) > 2 and node.args[2] == ValueRef(value_id)
