"""Softmax attention, as one operator or spelled out, with the cache that its keys and values come from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from generator.analyze.ops import CASTS, ELEMENTWISE, EXPANDS, RESHAPES, OpClass, classify
from generator.analyze.structures.mask import Mask, mask_of
from generator.analyze.structures.softmax import Softmax, softmax_at
from generator.analyze.trail import Trail, made_by, operand, origin
from generator.ir import Extent, Graph, Node, ValueKind, ValueRef

_THROUGH = RESHAPES | EXPANDS | CASTS


@dataclass(frozen=True, slots=True)
class Append:
    """New rows joined to a cache: ``past`` is given to the graph, ``new`` computed in it, ``out`` what is read."""

    node: str
    past: str
    new: str
    out: str


@dataclass(frozen=True, slots=True)
class Attention:
    """``softmax(scale * q @ k^T) @ v`` over [batch, heads, queries or keys, head_dim].

    ``q`` is what the operator reads; ``keys`` and ``values`` lead back through views and repeated heads to what made
    them. ``cached_keys`` and ``cached_values`` are the appends in between, None without a cache.
    """

    nodes: tuple[str, ...]
    q: Trail
    keys: Trail
    values: Trail
    mask: Mask
    out: str
    batch: Extent
    num_heads: int
    head_dim: int
    queries: Extent
    cached_keys: Append | None = None
    cached_values: Append | None = None
    altered_by: str = ""  # what changes the scores besides scale and mask, a soft cap for instance


def attention_at(graph: Graph, node: Node) -> Attention | None:
    """The attention whose scores become probabilities at ``node``."""
    kind = classify(node)
    if kind is OpClass.ATTENTION:
        q, k, v = (operand(node, i) for i in range(3))
        if q is None or k is None or v is None:
            return None
        causal = node.kwarg("is_causal", node.args[5] if len(node.args) > 5 else False) is True
        mask = mask_of(graph, operand(node, 3), is_causal=causal)
        return _attention(graph, (node.id,), q, k, v, mask, node.outputs[0])
    softmax = softmax_at(graph, node)
    return _spelled_out(graph, softmax) if softmax is not None else None


def _spelled_out(graph: Graph, softmax: Softmax) -> Attention | None:
    through = RESHAPES | CASTS | EXPANDS
    nodes = set(softmax.nodes)
    value = softmax.out
    while True:  # forward from the probabilities to the product with the values
        users = graph.users(value)
        if len(users) != 1:
            return None
        user = users[0]
        nodes.add(user.id)
        if user.target in ("aten.matmul", "aten.bmm"):
            break
        if user.target not in through:
            return None
        value = user.output
    if operand(user, 0) != value or operand(user, 1) is None:
        return None
    mask: str | None = None
    altered = ""
    scores = softmax.x
    while True:  # back from the scores to the product of queries and keys
        before = graph.producer(scores)
        if before is None:
            return None
        nodes.add(before.id)
        if before.target in ("aten.matmul", "aten.bmm"):
            break
        if before.target == "aten.add" and len(before.inputs) == 2 and mask is None:
            scores, mask = before.inputs
        elif (before.target in ("aten.mul", "aten.div") and len(before.inputs) == 1) or before.target in through:
            scores = before.inputs[0]
        elif classify(before) in ELEMENTWISE and len(before.inputs) == 1:
            scores, altered = before.inputs[0], before.op
        else:
            return None
    q, k, v = operand(before, 0), operand(before, 1), operand(user, 1)
    if q is None or k is None or v is None:
        return None
    out = _joined_heads(graph, user.output, nodes)
    ordered = tuple(sorted(nodes, key=graph.position))
    found = _attention(graph, ordered, q, k, v, mask_of(graph, mask, is_causal=False), out)
    return found if found is None or not altered else replace(found, altered_by=altered)


def _joined_heads(graph: Graph, value: str, nodes: set[str]) -> str:
    """The 4-D view of a product over merged batch and heads, which is its only user; else the value itself."""
    users = graph.users(value)
    if graph.values[value].rank == 3 and len(users) == 1 and users[0].target in RESHAPES:
        nodes.add(users[0].id)
        return users[0].output
    return value


def _attention(graph: Graph, nodes: tuple[str, ...], q: str, k: str, v: str, mask: Mask, out: str) -> Attention | None:
    shape = graph.values[out].shape
    if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
        return None
    keys, cached_keys = _cached(graph, k)
    values, cached_values = _cached(graph, v)
    return Attention(
        nodes=nodes,
        q=origin(graph, q, _THROUGH),
        keys=keys,
        values=values,
        mask=mask,
        out=out,
        batch=shape[0],
        num_heads=shape[1],
        head_dim=shape[3],
        queries=shape[2],
        cached_keys=cached_keys,
        cached_values=cached_values,
    )


def _cached(graph: Graph, value: str) -> tuple[Trail, Append | None]:
    """Back through views and repeated heads, and through one append to a cache."""
    trail = origin(graph, value, _THROUGH)
    append = append_at(graph, trail.value)
    if append is None:
        return trail, None
    new = origin(graph, append.new, _THROUGH)
    return Trail(new.value, (*trail.nodes, append.node, *new.nodes)), append


def append_at(graph: Graph, value: str) -> Append | None:
    """The joining of computed rows to rows that the graph was given, when ``value`` is one."""
    joined = made_by(graph, value, "aten.cat")
    if joined is not None:
        items = joined.args[0]
        ids = [item.id for item in items if isinstance(item, ValueRef)] if isinstance(items, tuple) else []
        if len(ids) == 2 and _is_given(graph, ids[0]) and not _is_given(graph, ids[1]):
            return Append(joined.id, ids[0], ids[1], value)
        return None
    written = made_by(
        graph, value, "aten.index_copy", "aten.index_put", "aten.slice_scatter", "aten.scatter", "aten.select_scatter"
    )
    if written is None or not _is_given(graph, written.inputs[0]):
        return None
    new = next((ref for ref in reversed(written.inputs) if not _is_given(graph, ref)), None)
    return None if new is None else Append(written.id, written.inputs[0], new, value)


def _is_given(graph: Graph, value: str) -> bool:
    root = graph.root(origin(graph, value, RESHAPES).value)
    return root.kind in (ValueKind.INPUT, ValueKind.BUFFER)
