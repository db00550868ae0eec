"""residual_rmsnorm and o_proj_residual_rmsnorm: the residual stream and its norms."""

from __future__ import annotations

from dataclasses import dataclass

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import RESHAPES
from generator.analyze.patterns.heads import heads_of
from generator.analyze.patterns.site import Site, result
from generator.analyze.structures import Linear, Norm
from generator.analyze.trail import made_by, origin, uses
from generator.ir import Node
from kb.contract import Contract


@dataclass(frozen=True, slots=True)
class Sum:
    """A block's output added to the residual stream by ``node``: ``branch`` is the output, ``stream`` the stream."""

    node: Node
    branch: str
    stream: str


def residual_rmsnorm(site: Site, contract: Contract) -> PatternResult:
    """Every RMSNorm of rows of the residual stream, with the addition in front of it where there is one."""
    head_norms = {
        norm.out
        for attention in site.structures.attentions.values()
        for heads in [heads_of(site, attention)]
        for head in (heads.q, heads.k)
        for norm in (head.norm, head.late_norm)
        if norm is not None
    }
    judged = [_normed(site, contract, norm, norm.out in head_norms) for norm in site.structures.norms.values()]
    return result(contract, judged, "the graph normalises nothing")


def o_proj_residual_rmsnorm(site: Site, contract: Contract) -> PatternResult:
    """Every projection of an attention's output."""
    judged: list[Match | Skip] = []
    for attention in site.structures.attentions.values():
        found, _ = uses(site.graph, attention.out, RESHAPES)
        for use in found:
            linear = next((x for x in site.structures.linears.values() if use.node.id in x.nodes), None)
            if linear is not None and use.value == linear.x:
                judged.append(_projected(site, contract, linear, use.through))
    return result(contract, judged, "no projection reads the output of a softmax attention")


def sum_of(site: Site, value: str, *, branch: str | None = None) -> Sum | None:
    """The addition of two whole tensors that makes ``value``. ``branch`` tells which operand is the block's output."""
    node = made_by(site.graph, value, "aten.add")
    if node is None or len(node.inputs) != 2 or node.kwarg("alpha", 1) != 1:
        return None
    shapes = {site.graph.values[operand].shape for operand in node.inputs}
    if shapes != {site.graph.values[value].shape}:
        return None
    first, second = node.inputs
    if branch is None:
        # The stream comes from further back than the block that reads it.
        later = max(node.inputs, key=lambda operand: _position(site, operand))
        return Sum(node, later, second if later == first else first)
    reached = [operand for operand in node.inputs if origin(site.graph, operand, RESHAPES).value == branch]
    return Sum(node, reached[0], second if reached[0] == first else first) if reached else None


def added_to_stream(site: Site, linear: Linear) -> Sum | str:
    """The addition that alone reads a projection, or what else reads it."""
    found, returned = uses(site.graph, linear.out, RESHAPES)
    if returned:
        return "the projection is returned to the caller"
    if len(found) != 1:
        return f"the projection is read by {len(found)} operators"
    user = found[0].node
    norm = next((n for n in site.structures.norms.values() if user.id in n.nodes), None)
    if norm is not None:
        return f"the projection is normalised ({norm.out}) before it is added to the residual"
    total = sum_of(site, user.outputs[0], branch=linear.out) if user.outputs else None
    return total if total is not None else f"the projection is read by {user.op}, not by a residual add"


def _normed(site: Site, contract: Contract, norm: Norm, is_head: bool) -> Match | Skip:
    graph = site.graph
    if is_head:
        return site.skip(norm.nodes, f"same-width: it normalises heads of {norm.width}, inside attention_prelude")
    wrong = _wrong_norm(norm)
    if wrong is not None:
        return site.skip(norm.nodes, wrong)
    if graph.values[norm.x].shape[-1] != norm.width:
        return site.skip(norm.nodes, "same-width: the weight is narrower than the rows")
    total = sum_of(site, norm.x)
    nodes = (*norm.nodes, *([total.node.id] if total is not None else []))
    dims = {"num_tokens": site.rows_of(norm.x), "hidden_size": norm.width, "has_residual": total is not None}
    return site.conclude(contract, nodes, dims, site.dtype_of(norm.x), [f"eps = {norm.eps:g}"])


def _projected(site: Site, contract: Contract, linear: Linear, views: tuple[str, ...]) -> Match | Skip:
    if linear.bias is not None:
        return site.skip(linear.nodes, "the projection has a bias, for which the contract has no tensor")
    if not linear.rows_contiguous:
        return site.skip(linear.nodes, "vector-width: the weight is stored with its columns contiguous")
    total = added_to_stream(site, linear)
    if isinstance(total, str):
        return site.skip(linear.nodes, f"single-user: {total}")
    out = total.node.output
    norm = next((norm for norm in site.structures.norms.values() if norm.x == out), None)
    if norm is None:
        return site.skip(linear.nodes, "single-user: the sum is not read by a norm")
    wrong = _wrong_norm(norm)
    if wrong is not None:
        return site.skip((*linear.nodes, *norm.nodes), wrong)
    nodes = (*views, *linear.nodes, total.node.id, *norm.nodes)
    dims = {"num_tokens": linear.rows, "hidden_size": linear.out_features, "in_features": linear.in_features}
    return site.conclude(contract, nodes, dims, site.dtype_of(linear.out), [f"eps = {norm.eps:g}"])


def _wrong_norm(norm: Norm) -> str | None:
    if norm.kind != "rms":
        return "the rows are normalised by LayerNorm, not by RMSNorm"
    if norm.weight is None:
        return "same-width: the norm has no weight"
    return None if norm.plain_weight else "the weight is computed, or multiplied before the rows are rounded"


def _position(site: Site, value: str) -> int:
    producer = site.graph.producer(value)
    return -1 if producer is None else site.graph.position(producer.id)
