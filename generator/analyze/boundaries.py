"""Hard boundaries: nodes that no generated kernel may contain, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from generator.analyze.ops import ELEMENTWISE, LAYOUT, OpClass, classify
from generator.ir import Graph, Node, Value

# Element types a generated kernel computes with.
COMPUTED_DTYPES = ("bfloat16", "float16", "float32")
_UNBACKED = re.compile(r"\bu\d+\b")
# One input may be as small as a number or a row; a kernel indexes it by the output's position.
_MERGED = ELEMENTWISE | {OpClass.REDUCTION, OpClass.SOFTMAX, OpClass.NORM}
# Arithmetic on indexes that only fetches rows: the index may be of an integer type.
_INDEXED = ("aten.embedding", "aten.index_select", "aten.gather", "aten.index")


def boundary(graph: Graph, node: Node, overwritten: frozenset[str]) -> str | None:
    """Why no kernel may be generated for ``node``, or None. ``overwritten`` holds the roots that some node mutates."""
    kind = classify(node)
    values = [graph.values[value] for value in (*node.inputs, *node.outputs)]
    if node.mutates:
        names = ", ".join(graph.values[value].name or value for value in node.mutates)
        return f"in place: overwrites {names}"
    if kind is OpClass.EFFECT or not node.outputs:
        return f"side effect: {node.op} is done for what it does, not for what it returns"
    if kind is OpClass.RANDOM:
        return f"side effect: {node.op} draws from the generator's state"
    if kind is OpClass.UNKNOWN:
        return f"unsupported operator: {node.op}"
    if node.target == "aten.as_strided":
        return "unresolved aliasing: as_strided may name any element of the storage"
    for value in values:
        root = graph.root(value.id)
        if root.id in overwritten:
            return f"unresolved aliasing: shares storage with {root.name or root.id}, which is overwritten"
    unknown = next((size for value in values for size in _sizes(value) if _UNBACKED.search(size)), None)
    if unknown is not None:
        return f"ambiguous dynamic shape: size {unknown} is decided by data"
    if kind in LAYOUT or kind is OpClass.FACTORY:
        return None
    return _dtype_boundary(node, values) or _shape_boundary(graph, node, kind)


def overwritten_roots(graph: Graph) -> frozenset[str]:
    """Ids of the values whose storage a node of the graph overwrites, except by the final write back of a buffer.

    A functional graph writes buffers back once, at its end, when nothing reads them any more: readers of the old
    contents are safe. A write with a reader after it is not.
    """
    found = set()
    for node in graph.nodes:
        for value in node.mutates:
            root = graph.root(value).id
            sharing = [v.id for v in graph.values.values() if v.id == root or v.alias_of == root]
            readers = [user for v in sharing for user in graph.users(v) if user.id != node.id]
            late = any(graph.position(user.id) > graph.position(node.id) for user in readers)
            if late or any(v in graph.outputs for v in sharing):
                found.add(root)
    return frozenset(found)


def _dtype_boundary(node: Node, values: list[Value]) -> str | None:
    if classify(node) is OpClass.ATTENTION:
        values = [value for value in values if value.dtype != "bool"]  # its mask
    for value in values:
        is_index = node.target in _INDEXED and value.dtype in ("int64", "int32") and value.rank > 0
        is_choice = node.target in ("aten.argmax", "aten.argmin") and value.dtype == "int64"
        if value.dtype not in COMPUTED_DTYPES and not is_index and not is_choice:
            return f"unsupported dtype: {value.dtype}"
    return None


def _shape_boundary(graph: Graph, node: Node, kind: OpClass) -> str | None:
    inputs = [graph.values[value] for value in node.inputs]
    if kind in _MERGED:
        named = {size for value in inputs for size in _broadcast_conflicts(value, graph.values[node.outputs[0]], kind)}
        if named:
            return f"ambiguous dynamic shape: {' and '.join(sorted(named))} meet in one dimension"
    if kind in (OpClass.REDUCTION, OpClass.SOFTMAX, OpClass.NORM) and inputs and inputs[0].rank:
        width = inputs[0].shape[-1]
        if not isinstance(width, int):
            return f"ambiguous dynamic shape: rows of {width} elements, a width that no kernel can be compiled for"
    if kind is OpClass.MATMUL and len(inputs) > 1:
        weight = inputs[1] if node.target != "aten.addmm" else inputs[-1]
        symbolic = [size for size in weight.shape[-2:] if not isinstance(size, int)]
        if symbolic:
            return f"ambiguous dynamic shape: a factor of {symbolic[0]} rows or columns"
    return None


def _broadcast_conflicts(value: Value, out: Value, kind: OpClass) -> set[str]:
    """Sizes of an input that are neither 1 nor the output's own, where either is symbolic."""
    if kind not in ELEMENTWISE:
        return set()
    pairs = zip(reversed(value.shape), reversed(out.shape), strict=False)
    return {
        str(s)
        for a, b in pairs
        if a != b and a != 1 and not (isinstance(a, int) and isinstance(b, int))
        for s in (a, b)
    }


def _sizes(value: Value) -> Iterator[str]:
    return (extent for extent in (*value.shape, *value.strides) if isinstance(extent, str))
