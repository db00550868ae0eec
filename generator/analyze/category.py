"""What a region computes, by rule, and a short name for reports."""

from __future__ import annotations

from generator.analyze.analysis import Category
from generator.analyze.ops import LAYOUT, OpClass, classify
from generator.analyze.structures import Structures
from generator.ir import Graph

# In order: the first class present decides.
_RULES = (
    (OpClass.ATTENTION, Category.ATTENTION),
    (OpClass.SOFTMAX, Category.SOFTMAX),
    (OpClass.NORM, Category.NORM),
    (OpClass.REDUCTION, Category.REDUCTION),
    (OpClass.EMBEDDING, Category.EMBEDDING),
    (OpClass.ACTIVATION, Category.ACTIVATION),
    (OpClass.POINTWISE, Category.ELEMENTWISE),
    (OpClass.CAST, Category.ELEMENTWISE),
    (OpClass.FACTORY, Category.FACTORY),
)
_LONGEST_LABEL = 4


def category_of(graph: Graph, structures: Structures, nodes: tuple[str, ...], *, blocked: bool) -> Category:
    """The category of a region with these nodes. A blocked region keeps its meaning, unless it has none."""
    inside = set(nodes)
    kinds = {classify(graph.node(node)) for node in nodes}
    if OpClass.MATMUL in kinds:
        return _product_category(graph, nodes)
    if any(set(rotary.nodes) <= inside for rotary in structures.rotaries.values()):
        return Category.ROTARY
    if any(set(norm.nodes) <= inside for norm in structures.norms.values()):
        return Category.NORM
    if any(set(softmax.nodes) <= inside for softmax in structures.softmaxes.values()):
        return Category.SOFTMAX
    if kinds <= LAYOUT:
        return Category.LAYOUT
    if any(set(item.nodes) <= inside for item in structures.activations.values()) and OpClass.REDUCTION not in kinds:
        return Category.ACTIVATION
    if blocked and kinds & {OpClass.UNKNOWN, OpClass.EFFECT, OpClass.RANDOM}:
        return Category.OPAQUE
    return next((category for kind, category in _RULES if kind in kinds), Category.OPAQUE)


def label_of(graph: Graph, structures: Structures, nodes: tuple[str, ...], category: Category) -> str:
    """A few words: the structure's name where there is one, else the operators in order."""
    inside = set(nodes)
    names: list[str] = []
    named: set[str] = set()
    for norm in structures.norms.values():
        if set(norm.nodes) <= inside:
            names.append("RMSNorm" if norm.kind == "rms" else "LayerNorm")
            named |= set(norm.nodes)
    for softmax in structures.softmaxes.values():
        if set(softmax.nodes) <= inside:
            names.append("softmax")
            named |= set(softmax.nodes)
    for rotary in structures.rotaries.values():
        if set(rotary.nodes) <= inside:
            names.append("rotary, neighbours" if rotary.interleaved else "rotary, halves")
            named |= set(rotary.nodes)
    words = [
        (graph.position(node), graph.node(node).target.removeprefix("aten.")) for node in nodes if node not in named
    ]
    plain = [word.strip("_") for _, word in sorted(words)]
    if category is Category.LAYOUT or len(plain) > _LONGEST_LABEL:
        plain = _counted(plain)
    return ", ".join(
        [*names, *(" + ".join(plain[:_LONGEST_LABEL] + ["…"] * (len(plain) > _LONGEST_LABEL)),) * bool(plain)]
    )


def _product_category(graph: Graph, nodes: tuple[str, ...]) -> Category:
    """A product with one row of activations streams the weight once: GEMV."""
    for node in map(graph.node, nodes):
        if classify(node) is OpClass.MATMUL:
            rows = graph.values[node.output].shape[:-1]
            is_batched = node.target in ("aten.bmm", "aten.baddbmm")
            return Category.GEMV if all(size == 1 for size in (rows[-1:] if is_batched else rows)) else Category.GEMM
    raise ValueError("no product among these nodes")


def _counted(words: list[str]) -> list[str]:
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    return [word if count == 1 else f"{count} {word}" for word, count in counts.items()]
