"""Gated activations and GELU: what stands between the projections of an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from generator.analyze.ops import CASTS, RESHAPES, SUBSETS, OpClass, classify
from generator.analyze.trail import made_by, origin
from generator.ir import Graph, Node

BACK_TO_PROJECTION = RESHAPES | SUBSETS


@dataclass(frozen=True, slots=True)
class Gate:
    """``out = activation(gate) * up``; ``activation`` is ``silu``, ``gelu``, …"""

    nodes: tuple[str, ...]
    gate: str
    up: str
    activation: str
    out: str


@dataclass(frozen=True, slots=True)
class Activation:
    """One nonlinearity of one value. ``name`` is the operator's, ``tanh_approximation`` GELU's."""

    nodes: tuple[str, ...]
    x: str
    out: str
    name: str
    tanh_approximation: bool = False


def activation_at(graph: Graph, node: Node) -> Activation | None:
    """The nonlinearity that ends at ``node``; ``x * sigmoid(x)`` is SiLU."""
    if node.target == "aten.mul" and len(node.inputs) == 2:
        for x, other in (node.inputs, tuple(reversed(node.inputs))):
            sigmoid = made_by(graph, other, "aten.sigmoid")
            if sigmoid is not None and sigmoid.inputs[0] == x:
                return Activation((sigmoid.id, node.id), x, node.output, "silu")
    if classify(node) is OpClass.ACTIVATION and node.target != "aten.sigmoid":
        name = node.target.removeprefix("aten.")
        return Activation((node.id,), node.inputs[0], node.output, name, node.kwarg("approximate") == "tanh")
    return None


def gate_at(graph: Graph, node: Node) -> Gate | None:
    """The product of an activated value with another, when ``node`` is one."""
    if node.target != "aten.mul" or len(node.inputs) != 2:
        return None
    for activated, up in (node.inputs, tuple(reversed(node.inputs))):
        before = origin(graph, activated, CASTS)
        maker = graph.producer(before.value)
        found = activation_at(graph, maker) if maker is not None else None
        if found is None or graph.values[activated].shape != graph.values[up].shape:
            continue
        x = origin(graph, found.x, CASTS)
        if x.value == up:
            continue  # x * sigmoid(x) is the activation itself
        nodes = {*found.nodes, *before.nodes, *x.nodes, node.id}
        return Gate(tuple(sorted(nodes, key=graph.position)), x.value, up, found.name, node.output)
    return None
