"""attention_prelude, rope, kv_append and paged_decode_attention: the attention of a decoder."""

from __future__ import annotations

from collections.abc import Callable

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import CASTS, EXPANDS, RESHAPES, SUBSETS
from generator.analyze.patterns.heads import Heads, heads_of, kv_heads
from generator.analyze.patterns.site import Site, result
from generator.analyze.structures import Attention, Norm
from generator.analyze.trail import origin
from generator.ir import Extent, product
from kb.contract import Contract

_Judge = Callable[[Site, Contract, Attention, Heads], Match | Skip]
_NO_ATTENTION = "the graph has no softmax attention"
_NOT_ROTATED = "queries and keys are not rotated by position"


def attention_prelude(site: Site, contract: Contract) -> PatternResult:
    """Projections, head norms, rotation and the append to the cache, for each attention."""
    return _of_each_attention(site, contract, _prelude)


def rope(site: Site, contract: Contract) -> PatternResult:
    """Rotations of the queries and keys of an attention by one table."""
    return _of_each_attention(site, contract, _rope)


def kv_append(site: Site, contract: Contract) -> PatternResult:
    """Where an attention's new keys and values join a cache."""
    return _of_each_attention(site, contract, _append)


def paged_decode_attention(site: Site, contract: Contract) -> PatternResult:
    """Attention of one query a sequence over what is cached."""
    return _of_each_attention(site, contract, _decode)


def _of_each_attention(site: Site, contract: Contract, judge: _Judge) -> PatternResult:
    attentions = site.structures.attentions.values()
    return result(contract, [judge(site, contract, a, heads_of(site, a)) for a in attentions], _NO_ATTENTION)


def _prelude(site: Site, contract: Contract, attention: Attention, heads: Heads) -> Match | Skip:
    nodes = [*heads.nodes, *attention.q.nodes, *attention.keys.nodes, *attention.values.nodes]
    q, k = heads.q, heads.k
    if q.rotary is None or k.rotary is None:
        return site.skip(attention.nodes, _NOT_ROTATED)
    if attention.cached_keys is None and attention.mask.kind in ("none", "given") and attention.queries != 1:
        return site.skip(attention.nodes, "all tokens see each other and none is cached: an encoder's attention")
    one_input = heads.read_one_input(site, nodes)
    if one_input is not None or q.linear is None:
        return site.skip(attention.nodes, f"one-input: {one_input}")
    if q.late_norm is not None or k.late_norm is not None:
        return site.skip(nodes, "norm-before-rotation: heads are normalised after they are rotated")
    norms = [norm for norm in (q.norm, k.norm) if norm is not None]
    wrong = _wrong_norms(norms, attention.head_dim)
    if wrong is not None:
        return site.skip(nodes, f"norm-before-rotation: {wrong}")
    if (q.rotary.rotary_dim, q.rotary.interleaved) != (k.rotary.rotary_dim, k.rotary.interleaved):
        return site.skip(nodes, "queries and keys are rotated differently")
    biases = [linear.bias is not None for linear in heads.linears]
    notes = []
    if len(heads.linears) > 1:
        notes.append(f"{len(heads.linears)} projections, whose rows are joined")
    if any(biases) and not all(biases):
        notes.append("zeros stand for the bias that a projection does not have")
    if attention.cached_keys is None:
        notes.append("captured without a cache")
    dims: dict[str, Extent | bool] = {
        "num_tokens": q.linear.rows,
        "hidden_size": q.linear.in_features,
        "num_heads": attention.num_heads,
        "num_kv_heads": kv_heads(site, attention),
        "head_dim": attention.head_dim,
        "rotary_dim": q.rotary.rotary_dim,
        "has_qkv_bias": any(biases),
        "has_qk_norm": bool(norms),
        "rope_interleaved": q.rotary.interleaved,
    }
    return site.conclude(contract, nodes, dims, site.dtype_of(q.linear.out), notes)


def _wrong_norms(norms: list[Norm], head_dim: int) -> str | None:
    if len(norms) == 1:
        return "only one of queries and keys is normalised"
    for norm in norms:
        if norm.width != head_dim:
            return f"a gamma of {norm.width} elements spans several heads of {head_dim}"
        if norm.kind != "rms" or norm.weight is None or not norm.plain_weight:
            return "the head norm is no RMSNorm with a stored gamma"
    return "queries and keys are normalised with different eps" if len({norm.eps for norm in norms}) > 1 else None


def _rope(site: Site, contract: Contract, attention: Attention, heads: Heads) -> Match | Skip:
    q, k = heads.q.rotary, heads.k.rotary
    if q is None or k is None:
        return site.skip(attention.nodes, _NOT_ROTATED)
    nodes = (*q.nodes, *k.nodes)
    through = RESHAPES | EXPANDS | CASTS | SUBSETS
    tables = {tuple(origin(site.graph, table, through).value for table in (r.cos, r.sin)) for r in (q, k)}
    if len(tables) != 1:
        return site.skip(nodes, "queries and keys are rotated by different tables")
    computed = sorted({site.dtype_of(value) for value in next(iter(tables))} - {"float32"})
    if computed:
        return site.skip(nodes, f"table-in-float32: the table is computed in {computed[0]}")
    if (q.rotary_dim, q.interleaved) != (k.rotary_dim, k.interleaved):
        return site.skip(nodes, "queries and keys are rotated differently")
    dims: dict[str, Extent | bool] = {
        "num_tokens": product(attention.batch, attention.queries),
        "num_heads": attention.num_heads,
        "num_kv_heads": kv_heads(site, attention),
        "head_dim": attention.head_dim,
        "rotary_dim": q.rotary_dim,
        "rope_interleaved": q.interleaved,
    }
    rounded = site.dtype_of(q.cos)
    notes = [] if rounded == "float32" else [f"the model rounds the table to {rounded}, the contract does not"]
    return site.conclude(contract, nodes, dims, site.dtype_of(q.out), notes)


def _append(site: Site, contract: Contract, attention: Attention, heads: Heads) -> Match | Skip:
    keys, values = attention.cached_keys, attention.cached_values
    if keys is None or values is None:
        what = "keys and values" if keys is values else "keys" if keys is None else "values"
        return site.skip(attention.nodes, f"paged-cache: the {what} of this call join no cache")
    nodes = (keys.node, values.node)
    cached, new = site.dtype_of(keys.past), site.dtype_of(keys.new)
    if cached != new:
        return site.skip(nodes, f"paged-cache: rows of {new} are cached as {cached}")
    dims: dict[str, Extent | bool] = {
        "num_tokens": product(attention.batch, attention.queries),
        "num_kv_heads": kv_heads(site, attention),
        "head_dim": attention.head_dim,
    }
    notes = ["part of attention_prelude where that is used"] if heads.k.rotary is not None else []
    return site.conclude(contract, nodes, dims, new, notes)


def _decode(site: Site, contract: Contract, attention: Attention, _: Heads) -> Match | Skip:
    cached, mask = (attention.cached_keys, attention.cached_values), attention.mask
    queries = attention.queries
    if queries != 1:
        return site.skip(attention.nodes, f"causal-single-query: {queries} queries a sequence; a decode step has one")
    if cached[0] is None or cached[1] is None:
        return site.skip(attention.nodes, "causal-single-query: the query attends to no cached tokens")
    if mask.kind in ("given", "other"):
        return site.skip(attention.nodes, f"causal-single-query: not all cached tokens count, {mask.detail}")
    if attention.altered_by:
        return site.skip(attention.nodes, f"the scores also go through {attention.altered_by}")
    through = RESHAPES | EXPANDS | CASTS
    ends = {append.out for append in cached if append is not None}
    trails = [origin(site.graph, value, through) for value in site.graph.crossing(attention.nodes)[0]]
    between = [node for trail in trails if trail.value in ends for node in trail.nodes]
    dims: dict[str, Extent | bool] = {
        "num_tokens": attention.batch,
        "num_heads": attention.num_heads,
        "num_kv_heads": kv_heads(site, attention),
        "head_dim": attention.head_dim,
        "sliding_window": mask.window,
    }
    return site.conclude(contract, (*attention.nodes, *between), dims, site.dtype_of(attention.out))
