"""Following a value back or forward through nodes that do not change what it holds."""

from __future__ import annotations

from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from generator.analyze.ops import CASTS, EXPANDS, RESHAPES, SUBSETS
from generator.ir import Extent, Graph, Node, ValueRef, as_extent

SAME_ELEMENTS = RESHAPES | CASTS
ANY_VIEW = RESHAPES | CASTS | SUBSETS | EXPANDS


@dataclass(frozen=True, slots=True)
class Trail:
    """Where a walk ended, and the nodes it went through."""

    value: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """A node that reads a value, or a view of it (``through``)."""

    node: Node
    value: str
    through: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A slice along one dimension: elements start, start + step, … below end."""

    base: str
    node: str
    dim: int
    start: int
    end: int
    step: int


def origin(graph: Graph, value: str, through: AbstractSet[str] = SAME_ELEMENTS, *, until: Container[str] = ()) -> Trail:
    """The first value on the way back that is made by anything other than these operators, or that is in ``until``."""
    passed: list[str] = []
    while value not in until and (node := graph.producer(value)) is not None and node.target in through:
        passed.append(node.id)
        value = node.inputs[0]
    return Trail(value, tuple(passed))


def uses(graph: Graph, value: str, through: AbstractSet[str] = SAME_ELEMENTS) -> tuple[tuple[Use, ...], bool]:
    """The nodes that finally read a value through these operators, and whether the graph returns it or a view."""
    found: list[Use] = []
    returned = value in graph.outputs
    for user in graph.users(value):
        if user.target in through:
            for output in user.outputs:
                further, out = uses(graph, output, through)
                found.extend(Use(use.node, use.value, (user.id, *use.through)) for use in further)
                returned = returned or out
        else:
            found.append(Use(user, value, ()))
    found.sort(key=lambda use: graph.position(use.node.id))
    return tuple(found), returned


def operand(node: Node, index: int) -> str | None:
    """The value id of a positional argument, None when it is not a value."""
    arg = node.args[index] if index < len(node.args) else None
    return arg.id if isinstance(arg, ValueRef) else None


def made_by(graph: Graph, value: str | None, *targets: str) -> Node | None:
    """The producer of a value when it is one of these operators."""
    node = graph.producer(value) if value is not None else None
    return node if node is not None and node.target in targets else None


def last_dim(graph: Graph, value: str, dim: object) -> bool:
    """True when ``dim`` (an index, or a tuple of one) names the last dimension of ``value``."""
    index = dim[0] if isinstance(dim, tuple) and len(dim) == 1 else dim
    rank = graph.values[value].rank
    return isinstance(index, int) and index in (-1, rank - 1)


def part_of(graph: Graph, value: str) -> Part | None:
    """How a value slices another one along a dimension of a known size, else None."""
    node = graph.producer(value)
    if node is None or operand(node, 0) is None:
        return None
    base = node.inputs[0]
    shape = graph.values[base].shape
    numbers = [as_extent(arg) for arg in node.args[1:] if not isinstance(arg, tuple)]
    if node.target == "aten.slice":
        bounds = slice_bounds(numbers)
        if not all(isinstance(n, int) for n in bounds):
            return None
        return _part(base, node, shape, *(int(n) for n in bounds if n is not None))
    if node.target in ("aten.split", "aten.split_with_sizes", "aten.chunk"):
        axis = as_extent(node.args[2]) if len(node.args) > 2 else 0
        if not isinstance(axis, int):
            return None
        axis %= len(shape)
        start = 0
        for output in node.outputs:
            width = graph.values[output].shape[axis]
            if not isinstance(width, int):
                return None
            if output == value:
                return Part(base, node.id, axis, start, start + width, 1)
            start += width
    return None


def slice_bounds(given: Sequence[Extent | None]) -> tuple[Extent | None, ...]:
    """The dim, start, end and step of a slice operator's arguments after its tensor, defaults filled in."""
    defaults = (0, 0, 2**63 - 1, 1)
    filled = [*given, *defaults[len(given) :]]
    return tuple(default if number is None else number for number, default in zip(filled, defaults, strict=True))


def _part(base: str, node: Node, shape: tuple[Extent, ...], dim: int, start: int, end: int, step: int) -> Part | None:
    size = shape[dim]
    if not isinstance(size, int):
        return None
    start = start + size if start < 0 else min(start, size)
    end = end + size if end < 0 else min(end, size)
    return Part(base, node.id, dim % len(shape), start, end, step)


def common_module(graph: Graph, nodes: tuple[str, ...]) -> str:
    """The longest module path that all these nodes are in."""
    paths = [graph.node(node).module.split(".") for node in nodes]
    if not paths:
        return ""
    shared = []
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)
