"""Rotary position embedding in its usual spellings, whole or of the leading part of a head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from generator.analyze.ops import CASTS, RESHAPES
from generator.analyze.trail import made_by, operand, origin, part_of
from generator.ir import Graph, Node, ValueRef


@dataclass(frozen=True, slots=True)
class Rotary:
    """``x`` [..., head_dim] rotated into ``out`` by ``cos`` and ``sin``, its first ``rotary_dim`` elements."""

    nodes: tuple[str, ...]
    x: str
    out: str
    cos: str
    sin: str
    head_dim: int
    rotary_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class _Core:
    nodes: frozenset[str]
    x: str
    out: str
    cos: str
    sin: str
    interleaved: bool


def rotary_at(graph: Graph, node: Node) -> Rotary | None:
    """The rotation whose last arithmetic is ``node``: the sum of both products, or the joining of rotated halves."""
    core = _of_sum(graph, node) or _of_halves(graph, node)
    if core is None:
        return None
    width = graph.values[core.x].shape[-1]
    if not isinstance(width, int):
        return None
    nodes, x, out = set(core.nodes), core.x, core.out
    part = part_of(graph, x)
    if part is not None and part.dim == graph.values[part.base].rank - 1 and part.start == 0 and part.step == 1:
        joined = _rejoined(graph, out, part.base, part.end)
        if joined is not None:
            nodes |= {part.node, joined[0].id, *joined[1]}
            x, out = part.base, joined[0].output
    elif (empty := _joined_with_nothing(graph, out)) is not None:
        nodes |= empty[0]
        out = empty[1]
    head_dim = graph.values[x].shape[-1]
    if not isinstance(head_dim, int):
        return None
    ordered = tuple(sorted(nodes, key=graph.position))
    return Rotary(ordered, x, out, core.cos, core.sin, head_dim, width, core.interleaved)


def _of_sum(graph: Graph, node: Node) -> _Core | None:
    """``x * cos + rotate(x) * sin``."""
    if node.target != "aten.add" or len(node.inputs) != 2:
        return None
    for first, second in (node.inputs, tuple(reversed(node.inputs))):
        plain, turned = made_by(graph, first, "aten.mul"), made_by(graph, second, "aten.mul")
        if plain is None or turned is None or len(plain.inputs) != 2 or len(turned.inputs) != 2:
            continue
        for x, cos in (plain.inputs, tuple(reversed(plain.inputs))):
            for rotated, sin in (turned.inputs, tuple(reversed(turned.inputs))):
                found = _half_turn(graph, rotated, x) or _neighbour_turn(graph, rotated, x)
                if found is not None:
                    nodes, interleaved = found
                    return _Core(nodes | {node.id, plain.id, turned.id}, x, node.output, cos, sin, interleaved)
    return None


def _half_turn(graph: Graph, rotated: str, x: str) -> tuple[frozenset[str], bool] | None:
    """``cat(-x[half:], x[:half])``."""
    joined = made_by(graph, rotated, "aten.cat")
    width = graph.values[x].shape[-1]
    if joined is None or not isinstance(width, int):
        return None
    items = _items(joined)
    if len(items) != 2 or not _along_last(graph, joined, rotated):
        return None
    negated = made_by(graph, items[0], "aten.neg")
    upper = part_of(graph, negated.inputs[0]) if negated is not None else None
    lower = part_of(graph, items[1])
    if negated is None or upper is None or lower is None:
        return None
    same = _is(graph, upper.base, x) and _is(graph, lower.base, x)
    spans = (upper.start, upper.end, lower.start, lower.end) == (width // 2, width, 0, width // 2)
    if not same or not spans or {upper.step, lower.step} != {1}:
        return None
    return frozenset({joined.id, negated.id, upper.node, lower.node}), False


def _neighbour_turn(graph: Graph, rotated: str, x: str) -> tuple[frozenset[str], bool] | None:
    """``stack(-x[1::2], x[0::2], -1)`` flattened."""
    flat = origin(graph, rotated, RESHAPES)
    joined = made_by(graph, flat.value, "aten.cat", "aten.stack")
    if joined is None:
        return None
    items = _items(joined)
    if len(items) != 2:
        return None
    nodes = {joined.id, *flat.nodes}
    first, second = (origin(graph, item, RESHAPES) for item in items)
    nodes |= {*first.nodes, *second.nodes}
    negated = made_by(graph, first.value, "aten.neg")
    odd = part_of(graph, negated.inputs[0]) if negated is not None else None
    even = part_of(graph, second.value)
    if negated is None or odd is None or even is None or not (_is(graph, odd.base, x) and _is(graph, even.base, x)):
        return None
    if (odd.start, odd.step, even.start, even.step) != (1, 2, 0, 2):
        return None
    return frozenset(nodes | {negated.id, odd.node, even.node}), True


def _of_halves(graph: Graph, node: Node) -> _Core | None:
    """``cat(a * cos - b * sin, b * cos + a * sin)`` of the halves, or the same of neighbours, stacked."""
    if node.target not in ("aten.cat", "aten.stack"):
        return None
    items = _items(node)
    if len(items) != 2:
        return None
    first, second = (origin(graph, item, RESHAPES) for item in items)
    minus, plus = made_by(graph, first.value, "aten.sub"), made_by(graph, second.value, "aten.add")
    if minus is None or plus is None:
        return None
    left, right = _products(graph, minus), _products(graph, plus)
    if left is None or right is None:
        return None
    for a, cos in _orders(left[0]):
        for b, sin in _orders(left[1]):
            wanted = {frozenset((b, cos)), frozenset((a, sin))}
            if {frozenset(right[0].inputs), frozenset(right[1].inputs)} != wanted:
                continue
            low, high = part_of(graph, a), part_of(graph, b)
            if low is None or high is None or low.base != high.base:
                continue
            nodes = {node.id, minus.id, plus.id, *(p.id for p in (*left, *right)), low.node, high.node}
            nodes |= {*first.nodes, *second.nodes}
            width = graph.values[low.base].shape[-1]
            half = width // 2 if isinstance(width, int) else -1
            if (low.start, low.end, high.start, high.step, low.step) == (0, half, half, 1, 1):
                return _Core(frozenset(nodes), low.base, node.output, cos, sin, False)
            if (low.start, low.step, high.start, high.step) == (0, 2, 1, 2):
                return _Core(frozenset(nodes), low.base, node.output, cos, sin, True)
    return None


def _rejoined(graph: Graph, out: str, base: str, end: int) -> tuple[Node, frozenset[str]] | None:
    """The joining of a rotated part with the untouched rest of the same heads, and the nodes on the way."""
    for user in graph.users(out):
        if user.target in CASTS | RESHAPES:
            further = _rejoined(graph, user.output, base, end)
            if further is not None:
                return further[0], further[1] | {user.id}
        if user.target != "aten.cat":
            continue
        items = _items(user)
        rest = part_of(graph, items[1]) if len(items) == 2 and items[0] == out else None
        if rest is not None and rest.base == base and (rest.start, rest.end) == (end, graph.values[base].shape[-1]):
            return user, frozenset({rest.node})
    return None


def _joined_with_nothing(graph: Graph, out: str) -> tuple[frozenset[str], str] | None:
    """A whole head that is rotated, joined with the rest of it, which is empty."""
    for user in graph.users(out):
        items = _items(user) if user.target == "aten.cat" else ()
        if len(items) == 2 and items[0] == out and graph.values[items[1]].shape[-1] == 0:
            rest = graph.producer(items[1])
            return frozenset({user.id} | ({rest.id} if rest is not None else set())), user.output
    return None


def _products(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    if len(node.inputs) != 2:
        return None
    first, second = (made_by(graph, operand(node, i), "aten.mul") for i in (0, 1))
    if first is None or second is None or len(first.inputs) != 2 or len(second.inputs) != 2:
        return None
    return first, second


def _orders(node: Node) -> Iterator[tuple[str, str]]:
    a, b = node.inputs
    yield a, b
    yield b, a


def _items(node: Node) -> tuple[str, ...]:
    items = node.args[0]
    return tuple(item.id for item in items if isinstance(item, ValueRef)) if isinstance(items, tuple) else ()


def _along_last(graph: Graph, node: Node, value: str) -> bool:
    dim = node.args[1] if len(node.args) > 1 else 0
    return dim in (-1, graph.values[value].rank - 1)


def _is(graph: Graph, value: str, other: str) -> bool:
    """The same tensor, casts aside."""
    return origin(graph, value, CASTS).value == origin(graph, other, CASTS).value
