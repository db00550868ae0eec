"""RMSNorm and LayerNorm, as one operator or spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from generator.analyze.ops import CASTS
from generator.analyze.trail import last_dim, made_by, operand, origin
from generator.ir import Graph, Node, ValueKind, ValueRef


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation of rows of ``width``. ``x`` is the value before any cast; ``weight`` None where rows are only
    scaled; ``plain_weight`` is False where the weight is computed, such as 1 + gamma, or follows without the round
    to the storage type in between.
    """

    kind: Literal["rms", "layer"]
    nodes: tuple[str, ...]
    x: str
    weight: str | None
    bias: str | None
    eps: float
    out: str
    width: int
    plain_weight: bool = True


def norm_at(graph: Graph, node: Node) -> Norm | None:
    """The normalisation whose characteristic operator is ``node``: the norm itself, or its reciprocal root."""
    if node.target in ("aten.layer_norm", "aten.native_layer_norm", "aten.rms_norm", "aten._fused_rms_norm"):
        return _whole(graph, node)
    if node.target in ("aten.rsqrt", "aten.sqrt", "aten.reciprocal"):
        return _spelled_out(graph, node)
    return None


def _whole(graph: Graph, node: Node) -> Norm | None:
    kind: Literal["rms", "layer"] = "rms" if "rms" in node.target else "layer"
    x = operand(node, 0)
    widths = node.args[1] if len(node.args) > 1 else None
    width = graph.values[node.inputs[0]].shape[-1]
    if x is None or not isinstance(widths, tuple) or len(widths) != 1 or not isinstance(width, int):
        return None
    position = 3 if kind == "rms" else 4
    given = node.args[position] if len(node.args) > position else None
    eps = float(given) if isinstance(given, (int, float)) else (1e-5 if kind == "layer" else 0.0)
    bias = operand(node, 3) if kind == "layer" else None
    return Norm(kind, (node.id,), x, operand(node, 2), bias, eps, node.outputs[0], width)


def _spelled_out(graph: Graph, root: Node) -> Norm | None:
    nodes = {root.id}
    if root.target == "aten.reciprocal":
        inner = made_by(graph, operand(root, 0), "aten.sqrt")
        if inner is None:
            return None
        nodes.add(inner.id)
        argument = operand(inner, 0)
    else:
        argument = operand(root, 0)
    addition = made_by(graph, argument, "aten.add")
    if addition is None or len(addition.inputs) != 1:
        return None
    eps = next((arg for arg in addition.args if isinstance(arg, (int, float))), None)
    mean = made_by(graph, addition.inputs[0], "aten.mean")
    if eps is None or mean is None or not last_dim(graph, mean.inputs[0], mean.args[1] if len(mean.args) > 1 else None):
        return None
    square = graph.producer(mean.inputs[0])
    if square is None or not _is_square(square):
        return None
    centred = square.inputs[0]
    width = graph.values[centred].shape[-1]
    scaled = _scaled(graph, root, centred)
    if scaled is None or not isinstance(width, int):
        return None
    nodes |= {addition.id, mean.id, square.id, scaled.id}
    nodes |= {
        node.id for node in graph.producers(scaled.id) if node.output != centred and _same(graph, node.output, centred)
    }
    x, kind = centred, "rms"
    difference = made_by(graph, centred, "aten.sub")
    if difference is not None:
        first = made_by(graph, operand(difference, 1), "aten.mean")
        if first is not None and first.inputs[0] == operand(difference, 0):
            kind, x = "layer", first.inputs[0]
            nodes |= {difference.id, first.id}
    before = origin(graph, x, CASTS)
    if all(user.id in nodes or user.id in before.nodes for user in graph.users(x)):
        x = before.value
        nodes |= set(before.nodes)
    out, weight, bias, plain = _affine(graph, scaled.output, width, nodes, kind == "layer")
    ordered = tuple(sorted(nodes, key=graph.position))
    return Norm("layer" if kind == "layer" else "rms", ordered, x, weight, bias, float(eps), out, width, plain)


def _is_square(node: Node) -> bool:
    if node.target == "aten.pow":
        return len(node.args) == 2 and node.args[1] in (2, 2.0)
    return (node.target == "aten.mul" and len(node.inputs) == 1 and node.args[0] == node.args[1]) or (
        node.target == "aten.square"
    )


def _scaled(graph: Graph, root: Node, centred: str) -> Node | None:
    """The product of the rows with the reciprocal root, or their quotient by the root."""
    wanted = "aten.div" if root.target == "aten.sqrt" else "aten.mul"
    for user in graph.users(root.output):
        others = [value for value in user.inputs if value != root.output]
        if user.target == wanted and len(others) == 1 and _same(graph, others[0], centred):
            return user
    return None


def _same(graph: Graph, first: str, second: str) -> bool:
    """The same value, or the same operator of the same arguments computed twice."""
    one, other = graph.producer(first), graph.producer(second)
    if first == second or one is None or other is None:
        return first == second
    return (one.op, one.kwargs) == (other.op, other.kwargs) and (
        one.args == other.args
        or all(
            a == b or (isinstance(a, ValueRef) and isinstance(b, ValueRef) and _same(graph, a.id, b.id))
            for a, b in zip(one.args, other.args, strict=True)
        )
    )


def _affine(
    graph: Graph, value: str, width: int, nodes: set[str], with_bias: bool
) -> tuple[str, str | None, str | None, bool]:
    """Follow a cast, a weight and a bias after the scaled rows; adds what it passes to ``nodes``."""
    rounded = graph.values[value].dtype != "float32"
    out, weight, bias, plain = value, None, None, True
    step = _only_user(graph, out)
    if step is not None and step.target in CASTS:
        out, rounded = step.output, True
        nodes.add(step.id)
        step = _only_user(graph, out)
    if step is not None and step.target == "aten.mul":
        other = next((v for v in step.inputs if v != out), None)
        if other is not None and graph.values[other].shape == (width,):
            weight = origin(graph, other, CASTS).value
            is_stored = graph.values[weight].kind is not ValueKind.COMPUTED
            out = step.output
            nodes.add(step.id)
            plain = is_stored and (rounded or graph.values[out].dtype == "float32" == graph.values[weight].dtype)
            step = _only_user(graph, out)
    if with_bias and step is not None and step.target == "aten.add":
        other = next((v for v in step.inputs if v != out), None)
        if other is not None and graph.values[other].shape == (width,):
            bias, out = origin(graph, other, CASTS).value, step.output
            nodes.add(step.id)
            step = _only_user(graph, out)
    if step is not None and step.target in CASTS and not rounded:
        out = step.output
        nodes.add(step.id)
    return out, weight, bias, plain


def _only_user(graph: Graph, value: str) -> Node | None:
    users = graph.users(value)
    return users[0] if len(users) == 1 and value not in graph.outputs else None
