"""encoder_qkv, encoder_attention and encoder_mlp: layers whose tokens all see each other."""

from __future__ import annotations

from collections.abc import Callable

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import RESHAPES
from generator.analyze.patterns.heads import Heads, heads_of, kv_heads
from generator.analyze.patterns.residual import sum_of
from generator.analyze.patterns.site import Site, result
from generator.analyze.structures import Activation, Attention, Linear, Norm
from generator.analyze.trail import Use, origin, uses
from generator.ir import Extent
from kb.contract import Contract

_NO_ATTENTION = "the graph has no softmax attention"


def encoder_qkv(site: Site, contract: Contract) -> PatternResult:
    """Projections of a bidirectional attention, with the LayerNorm in front of them where only they read it."""
    return _of_each_attention(site, contract, _qkv)


def encoder_attention(site: Site, contract: Contract) -> PatternResult:
    """Attention of all tokens of a sequence to all of them."""
    return _of_each_attention(site, contract, _attention)


def encoder_mlp(site: Site, contract: Contract) -> PatternResult:
    """Two projections with a GELU between them, added to what went in."""
    judged = [
        _mlp(site, contract, activation, up, views, use)
        for activation in site.structures.activations.values()
        for up, views in [site.projection_of(activation.x)]
        if up is not None
        for use in uses(site.graph, activation.out, RESHAPES)[0]
    ]
    return result(contract, judged, "no activated projection is projected again")


def _of_each_attention(
    site: Site, contract: Contract, judge: Callable[[Site, Contract, Attention, Heads], Match | Skip]
) -> PatternResult:
    attentions = site.structures.attentions.values()
    return result(contract, [judge(site, contract, a, heads_of(site, a)) for a in attentions], _NO_ATTENTION)


def _not_bidirectional(attention: Attention, heads: Heads) -> str | None:
    if attention.cached_keys is not None or attention.cached_values is not None:
        return "bidirectional: keys and values are cached, as a decoder's are"
    if heads.q.rotary is not None or heads.k.rotary is not None:
        return "queries and keys are rotated by position, for which the contract has no tensor"
    kind = attention.mask.kind
    if kind in ("causal", "window"):
        return f"bidirectional: the mask is {'causal' if kind == 'causal' else 'a window'}"
    return None


def _qkv(site: Site, contract: Contract, attention: Attention, heads: Heads) -> Match | Skip:
    reason = _not_bidirectional(attention, heads)
    if reason is not None:
        return site.skip(attention.nodes, reason)
    nodes = [*heads.nodes, *attention.q.nodes, *attention.keys.nodes, *attention.values.nodes]
    one_input = heads.read_one_input(site, nodes)
    if one_input is not None:
        return site.skip(attention.nodes, f"one-input: {one_input}")
    first = heads.linears[0]
    if heads.q.norm is not None or heads.k.norm is not None:
        return site.skip(nodes, "queries or keys are normalised, for which the contract has no tensor")
    if kv_heads(site, attention) != attention.num_heads:
        return site.skip(nodes, "heads of keys and values are shared between queries")
    biases = [linear.bias is not None for linear in heads.linears]
    notes = [] if all(biases) else ["zeros stand for the bias that a projection does not have"]
    if len(heads.linears) > 1:
        notes.append(f"{len(heads.linears)} projections, whose rows are joined")
    norm = _pre_norm(site, first.x, {node for linear in heads.linears for node in linear.nodes})
    if norm is not None:
        nodes.extend(norm.nodes)
        notes.append(f"eps = {norm.eps:g}")
    dims: dict[str, Extent | bool] = {
        "num_tokens": first.rows,
        "hidden_size": first.in_features,
        "num_heads": attention.num_heads,
        "head_dim": attention.head_dim,
        "has_pre_norm": norm is not None,
    }
    return site.conclude(contract, nodes, dims, site.dtype_of(first.out), notes)


def _attention(site: Site, contract: Contract, attention: Attention, heads: Heads) -> Match | Skip:
    reason = _not_bidirectional(attention, heads)
    if reason is not None:
        return site.skip(attention.nodes, reason)
    if attention.altered_by:
        return site.skip(attention.nodes, f"bidirectional: the scores also go through {attention.altered_by}")
    if attention.mask.kind == "given":
        return site.skip(attention.nodes, f"bidirectional: padding may be anywhere, {attention.mask.detail}")
    if attention.mask.kind == "other":
        return site.skip(attention.nodes, f"bidirectional: the scores are biased, {attention.mask.detail}")
    if any(head.linear is None or head.norm is not None for head in (heads.q, heads.k, heads.v)):
        return site.skip(attention.nodes, "joint-qkv: queries, keys and values are not as projections made them")
    if len({origin(site.graph, linear.x).value for linear in heads.linears}) != 1:
        return site.skip(attention.nodes, "joint-qkv: the projections read different rows")
    if kv_heads(site, attention) != attention.num_heads:
        return site.skip(attention.nodes, "joint-qkv: heads of keys and values are shared between queries")
    dims: dict[str, Extent | bool] = {
        "batch_size": attention.batch,
        "seq_len": attention.queries,
        "num_heads": attention.num_heads,
        "head_dim": attention.head_dim,
    }
    return site.conclude(contract, attention.nodes, dims, site.dtype_of(attention.out), ["every sequence is full"])


def _mlp(
    site: Site, contract: Contract, activation: Activation, up: Linear, views: tuple[str, ...], use: Use
) -> Match | Skip:
    graph = site.graph
    down = next((x for x in site.structures.linears.values() if use.node.id in x.nodes and use.value == x.x), None)
    nodes = [*up.nodes, *views, *activation.nodes, *use.through]
    if down is None:
        between = f"gelu-between: {use.node.op} reads the activated rows"
        return site.skip(nodes, between)
    nodes.extend(down.nodes)
    if activation.name != "gelu":
        return site.skip(nodes, f"gelu-between: the activation is {activation.name}")
    for value in (up.out, activation.out):
        other = site.read_elsewhere(value, nodes)
        if other is not None:
            return site.skip(nodes, f"gelu-between: {other} also reads what is between the projections")
    readers, returned = uses(graph, down.out, RESHAPES)
    total = sum_of(site, readers[0].node.outputs[0], branch=down.out) if len(readers) == 1 and not returned else None
    if total is None:
        return site.skip(nodes, "residual-is-input: the second projection is not read by a residual add alone")
    norm = _pre_norm(site, up.x, set(up.nodes))
    entered = up.x if norm is None else norm.x
    if origin(graph, total.stream, RESHAPES).value != origin(graph, entered, RESHAPES).value:
        return site.skip(nodes, "residual-is-input: what is added is not the block's input")
    nodes.append(total.node.id)
    nodes.extend(norm.nodes if norm is not None else ())
    missing = up.bias is None or down.bias is None
    notes = ["zeros stand for the bias that a projection does not have"] if missing else []
    dims: dict[str, Extent | bool] = {
        "num_tokens": up.rows,
        "hidden_size": up.in_features,
        "intermediate_size": up.out_features,
        "has_pre_norm": norm is not None,
        "gelu_tanh": activation.tanh_approximation,
    }
    return site.conclude(contract, nodes, dims, site.dtype_of(up.out), notes)


def _pre_norm(site: Site, x: str, readers: set[str]) -> Norm | None:
    """The LayerNorm that makes ``x``, where nothing but ``readers`` reads it."""
    value = origin(site.graph, x, RESHAPES).value
    norm = site.structures.norms.get(value)
    if norm is None or norm.kind != "layer" or norm.weight is None or norm.bias is None:
        return None
    found, returned = uses(site.graph, value, RESHAPES)
    return norm if not returned and all(use.node.id in readers for use in found) else None
