"""Structures of a graph, each found once by its operators and edges, for regions and patterns alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from generator.analyze.structures.attention import Append, Attention, attention_at
from generator.analyze.structures.gate import Activation, Gate, activation_at, gate_at
from generator.analyze.structures.linear import Linear, linear_at
from generator.analyze.structures.mask import Mask
from generator.analyze.structures.norm import Norm, norm_at
from generator.analyze.structures.rotary import Rotary, rotary_at
from generator.analyze.structures.softmax import Softmax, softmax_at
from generator.ir import Graph, Node

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Structures:
    """Everything found, keyed by the value that comes out of it, in graph order."""

    linears: Mapping[str, Linear]
    norms: Mapping[str, Norm]
    rotaries: Mapping[str, Rotary]
    attentions: Mapping[str, Attention]
    gates: Mapping[str, Gate]
    activations: Mapping[str, Activation]
    softmaxes: Mapping[str, Softmax]


def find_structures(graph: Graph) -> Structures:
    """All structures of the graph."""

    def by_out(find: Callable[[Graph, Node], _T | None], out: Callable[[_T], str]) -> dict[str, _T]:
        found = (find(graph, node) for node in graph.nodes)
        return {out(item): item for item in found if item is not None}

    return Structures(
        linears=by_out(linear_at, lambda item: item.out),
        norms=by_out(norm_at, lambda item: item.out),
        rotaries=by_out(rotary_at, lambda item: item.out),
        attentions=by_out(attention_at, lambda item: item.out),
        gates=by_out(gate_at, lambda item: item.out),
        activations=by_out(activation_at, lambda item: item.out),
        softmaxes=by_out(softmax_at, lambda item: item.out),
    )


__all__ = [
    "Activation",
    "Append",
    "Attention",
    "Gate",
    "Linear",
    "Mask",
    "Norm",
    "Rotary",
    "Softmax",
    "Structures",
    "find_structures",
]
