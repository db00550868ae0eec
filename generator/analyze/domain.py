"""The rows a node iterates over: what decides whether two nodes can share one pass."""

from __future__ import annotations

from dataclasses import dataclass

from generator.analyze.ops import ELEMENTWISE, OpClass, classify
from generator.analyze.trail import last_dim
from generator.ir import Extent, Graph, Node


@dataclass(frozen=True, slots=True)
class Domain:
    """Every element of ``shape``, rows of the last dimension; ``reduces`` where some value is one number a row."""

    shape: tuple[Extent, ...]
    reduces: bool = False


def domain_of(graph: Graph, node: Node) -> Domain | None:
    """What ``node`` iterates over; None for a node that no pass over rows computes."""
    kind = classify(node)
    if kind in ELEMENTWISE:
        return Domain(graph.values[node.outputs[0]].shape)
    if not node.inputs:
        return None
    shape = graph.values[node.inputs[0]].shape
    if kind is OpClass.SOFTMAX and last_dim(graph, node.inputs[0], node.args[1] if len(node.args) > 1 else None):
        return Domain(shape, reduces=True)
    if kind is OpClass.NORM:
        widths = node.args[1] if len(node.args) > 1 else None
        return Domain(shape, reduces=True) if isinstance(widths, tuple) and len(widths) == 1 else None
    if kind is OpClass.REDUCTION and len(node.outputs) == 1:
        dim = node.args[1] if len(node.args) > 1 else None
        out = graph.values[node.outputs[0]]
        if last_dim(graph, node.inputs[0], dim) and out.rank == len(shape):  # the row's number stays beside its row
            return Domain(shape, reduces=True)
    return None


def join(first: Domain | None, second: Domain | None) -> Domain | None:
    """The domain of both together, None where they do not share rows.

    Equal shapes do. So do rows and their own numbers, one a row, when something in between reduces. So does a shape
    that is broadcast to the other's.
    """
    if first is None or second is None:
        return None
    reduces = first.reduces or second.reduces
    if first.shape == second.shape:
        return Domain(first.shape, reduces)
    small, large = sorted((first, second), key=lambda domain: _size(domain.shape))
    if small.reduces and small.shape != large.shape:
        return None  # its rows are other rows
    if _broadcasts(small.shape, large.shape):
        return Domain(large.shape, reduces)
    return None


def _size(shape: tuple[Extent, ...]) -> tuple[int, int]:
    """Order by how much there is: more symbolic or larger dimensions are more."""
    return sum(isinstance(extent, str) for extent in shape), sum(e if isinstance(e, int) else 0 for e in shape) + len(
        shape
    )


def _broadcasts(small: tuple[Extent, ...], large: tuple[Extent, ...]) -> bool:
    if len(small) > len(large):
        return False
    return all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))
