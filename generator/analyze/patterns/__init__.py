"""The fusion patterns of the contracts, found by structure: operators, edges and shapes, never by a module's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from generator.analyze.analysis import PatternResult, Skip
from generator.analyze.patterns.decoder_attention import attention_prelude, kv_append, paged_decode_attention, rope
from generator.analyze.patterns.encoder import encoder_attention, encoder_mlp, encoder_qkv
from generator.analyze.patterns.gated_mlp import gated_mlp_down, gated_mlp_up
from generator.analyze.patterns.lm_head import lm_head_argmax
from generator.analyze.patterns.residual import o_proj_residual_rmsnorm, residual_rmsnorm
from generator.analyze.patterns.site import Site
from generator.analyze.structures import Structures
from generator.ir import Graph
from kb.contract import Contract

PATTERNS: Mapping[str, Callable[[Site, Contract], PatternResult]] = {
    "residual_rmsnorm": residual_rmsnorm,
    "attention_prelude": attention_prelude,
    "rope": rope,
    "kv_append": kv_append,
    "paged_decode_attention": paged_decode_attention,
    "o_proj_residual_rmsnorm": o_proj_residual_rmsnorm,
    "gated_mlp_up": gated_mlp_up,
    "gated_mlp_down": gated_mlp_down,
    "lm_head_argmax": lm_head_argmax,
    "encoder_qkv": encoder_qkv,
    "encoder_attention": encoder_attention,
    "encoder_mlp": encoder_mlp,
}


def find_patterns(graph: Graph, structures: Structures, contracts: Mapping[str, Contract]) -> tuple[PatternResult, ...]:
    """One result a contract, in the order a layer runs them; contracts without a finder come last, as skipped."""
    site = Site(graph, structures)
    known = [find(site, contracts[name]) for name, find in PATTERNS.items() if name in contracts]
    others = [name for name in sorted(contracts) if name not in PATTERNS]
    return (*known, *(PatternResult(name, (), (Skip("", "no finder for this contract"),)) for name in others))
