"""What may be taken out of a region: a kernel for a part of it, the framework's own operator for the rest.

A product of matrices with the arithmetic that follows it is one region, because one kernel can compute both. Where that
kernel loses to the framework's product, the arithmetic alone may still win.
"""

from __future__ import annotations

from generator.analyze import Category, Region
from generator.ir import Graph

# Added to a region's id where a part of it is meant.
EPILOGUE = ".epilogue"
_PRODUCTS = frozenset({"aten.linear", "aten.mm", "aten.addmm", "aten.matmul", "aten.bmm"})


def epilogue_of(region: Region, graph: Graph) -> Region | None:
    """``region`` without its product of matrices; None where it has none, has two, or nothing but views is left.

    What is computed before the product stays out as well: it would have to be given back to the framework.
    """
    products = [n for n in region.nodes if graph.node(n).target in _PRODUCTS]
    if len(products) != 1 or region.blocked:
        return None
    after: list[str] = []
    made = set(graph.node(products[0]).outputs)
    for node_id in region.nodes:  # in graph order, so that what a node reads has been seen
        node = graph.node(node_id)
        if node_id != products[0] and made & set(node.inputs):
            after.append(node_id)
            made |= set(node.outputs)
    values = [graph.values[v] for n in after for v in graph.node(n).outputs]
    if not after or all(value.alias_of is not None for value in values):
        return None
    inputs, outputs = graph.crossing(after)
    names = [graph.node(n).target.split(".")[-1].removeprefix("_") for n in after]
    product = graph.node(products[0]).target.split(".")[-1]
    label = f"{' + '.join(names)}, after {product}"
    return Region(f"{region.id}{EPILOGUE}", tuple(after), inputs, outputs, Category.ELEMENTWISE, label)


__all__ = ["EPILOGUE", "epilogue_of"]
