"""Projections: a product with a weight, in any of the spellings an exporter leaves."""

from __future__ import annotations

from dataclasses import dataclass

from generator.analyze.trail import made_by, operand
from generator.ir import Extent, Graph, Node, ValueKind, product


@dataclass(frozen=True, slots=True)
class Linear:
    """``out = x @ weight^T + bias``. ``weight`` is [out_features, in_features] where ``rows_contiguous``, else its
    transpose; ``x`` is [..., in_features], ``rows`` the product of the leading sizes.
    """

    nodes: tuple[str, ...]
    x: str
    weight: str
    bias: str | None
    out: str
    rows: Extent
    in_features: int
    out_features: int
    rows_contiguous: bool


def linear_at(graph: Graph, node: Node) -> Linear | None:
    """The projection whose product is ``node``; None when it is no product with a stored weight of known size."""
    bias: str | None = None
    nodes = [node.id]
    if node.target == "aten.linear":
        x, weight, rows_contiguous = operand(node, 0), operand(node, 1), True
        bias = operand(node, 2)
    elif node.target in ("aten.mm", "aten.matmul"):
        x, weight, rows_contiguous = operand(node, 0), operand(node, 1), False
    elif node.target == "aten.addmm":
        bias, x, weight, rows_contiguous = operand(node, 0), operand(node, 1), operand(node, 2), False
    else:
        return None
    transposed = made_by(graph, weight, "aten.permute", "aten.t", "aten.transpose")
    if transposed is not None and not rows_contiguous:
        weight, rows_contiguous = transposed.inputs[0], True
        nodes.insert(0, transposed.id)
    if x is None or weight is None or not _is_stored(graph, weight):
        return None
    shape = graph.values[weight].shape
    if len(shape) != 2 or not all(isinstance(size, int) for size in shape):
        return None
    out_features, in_features = (int(size) for size in (shape if rows_contiguous else reversed(shape)))
    out = node.output
    if bias is None:
        added = _added_bias(graph, out, out_features)
        if added is not None:
            bias, addition = added
            out = addition.output
            nodes.append(addition.id)
    rows: Extent = 1
    for size in graph.values[x].shape[:-1]:
        rows = product(rows, size)
    return Linear(tuple(nodes), x, weight, bias, out, rows, in_features, out_features, rows_contiguous)


def _is_stored(graph: Graph, value: str) -> bool:
    return graph.root(value).kind is not ValueKind.COMPUTED


def _added_bias(graph: Graph, out: str, width: int) -> tuple[str, Node] | None:
    """A stored vector that the only user of a product adds to it."""
    users = graph.users(out)
    if len(users) != 1 or users[0].target != "aten.add" or out in graph.outputs:
        return None
    other = next((value for value in users[0].inputs if value != out), None)
    if other is None or graph.values[other].shape != (width,) or not _is_stored(graph, other):
        return None
    return other, users[0]
