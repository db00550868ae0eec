"""lm_head_argmax: the projection to scores of which only the largest is wanted."""

from __future__ import annotations

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import CASTS, RESHAPES, SUBSETS
from generator.analyze.patterns.site import Site, result
from generator.analyze.trail import last_dim, origin
from generator.ir import Extent, Node, product
from kb.contract import Contract


def lm_head_argmax(site: Site, contract: Contract) -> PatternResult:
    """Every index of a largest element of a row, and every projection whose rows leave the graph instead."""
    graph = site.graph
    largest = [node for node in graph.nodes if node.target == "aten.argmax"]
    judged = [_head(site, contract, node) for node in largest]
    if not largest:
        for value in dict.fromkeys(graph.outputs):
            linear, views = site.projection_of(value)
            if linear is not None:
                reason = "greedy: the projection is returned to the caller, not the index of its largest element"
                judged.append(site.skip((*linear.nodes, *views), reason))
    return result(contract, judged, "no index of a largest element is taken")


def _head(site: Site, contract: Contract, node: Node) -> Match | Skip:
    graph = site.graph
    scores = node.inputs[0]
    if not last_dim(graph, scores, node.args[1] if len(node.args) > 1 else None):
        return site.skip((node.id,), "greedy: the largest element is not that of a row")
    trail = origin(graph, scores, RESHAPES | SUBSETS | CASTS)
    linear = site.structures.linears.get(trail.value)
    if linear is None:
        maker = graph.producer(trail.value)
        between = maker.op if maker is not None else "an argument of the call"
        return site.skip((node.id,), f"greedy: the scores come from {between}, not straight from a projection")
    nodes = (*linear.nodes, *trail.nodes, node.id)
    for value in (linear.out, *(out for view in trail.nodes for out in graph.node(view).outputs)):
        other = site.read_elsewhere(value, nodes)
        if other is not None:
            return site.skip(nodes, f"greedy: the scores are also read by {other}")
    if graph.values[scores].shape[-1] != linear.out_features:
        return site.skip(nodes, "greedy: only a part of the scores is compared")
    if linear.bias is not None:
        return site.skip(nodes, "the projection has a bias, for which the contract has no tensor")
    if not linear.rows_contiguous:
        return site.skip(nodes, "vector-width: the weight is stored with its columns contiguous")
    rows: Extent = 1
    for size in graph.values[scores].shape[:-1]:
        rows = product(rows, size)
    dims = {"num_tokens": rows, "hidden_size": linear.in_features, "vocab_size": linear.out_features}
    readers = len(graph.users(linear.weight))
    notes = ["the weight is also the embedding table"] if readers > 1 else []
    return site.conclude(contract, nodes, dims, site.dtype_of(linear.x), notes)
