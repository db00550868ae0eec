"""Softmax of rows, as one operator or spelled out with the row's maximum taken off first."""

from __future__ import annotations

from dataclasses import dataclass

from generator.analyze.ops import OpClass, classify
from generator.analyze.trail import last_dim, made_by, operand
from generator.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class Softmax:
    """``out = softmax(x)`` over the last dimension."""

    nodes: tuple[str, ...]
    x: str
    out: str


def softmax_at(graph: Graph, node: Node) -> Softmax | None:
    """The softmax that ends at ``node``: the operator, or the quotient of the exponentials by their sum."""
    if classify(node) is OpClass.SOFTMAX and "log" not in node.target:
        dim = node.args[1] if len(node.args) > 1 else None
        return Softmax((node.id,), node.inputs[0], node.output) if last_dim(graph, node.inputs[0], dim) else None
    if node.target != "aten.div" or len(node.inputs) != 2:
        return None
    exponential = made_by(graph, operand(node, 0), "aten.exp")
    total = made_by(graph, operand(node, 1), "aten.sum")
    if exponential is None or total is None or total.inputs != exponential.outputs or not _keeps_row(graph, total):
        return None
    shifted = made_by(graph, operand(exponential, 0), "aten.sub")
    largest = made_by(graph, operand(shifted, 1) if shifted is not None else None, "aten.amax", "aten.max")
    if shifted is None or largest is None or largest.inputs[0] != operand(shifted, 0) or not _keeps_row(graph, largest):
        return None
    nodes = (largest.id, shifted.id, exponential.id, total.id, node.id)
    return Softmax(tuple(sorted(nodes, key=graph.position)), largest.inputs[0], node.output)


def _keeps_row(graph: Graph, node: Node) -> bool:
    """A reduction of the last dimension that leaves a dimension of one element in its place."""
    dim = node.args[1] if len(node.args) > 1 else None
    keeps = graph.values[node.outputs[0]].rank == graph.values[node.inputs[0]].rank
    return keeps and last_dim(graph, node.inputs[0], dim)
