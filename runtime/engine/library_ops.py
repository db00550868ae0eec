"""The library path: every operation of a step in plain torch, for any number of rows.

This is what runs where no kernel was chosen, and what every chosen kernel must beat. Each function takes a call and
returns it as a function without arguments, with the contract's semantics and rounding points. Unlike the baselines a
kernel is judged against, nothing here keeps scratch memory between calls: the same functions run prompts of any
length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear, rms_norm, silu

from runtime.engine.library_attention import decode_attention, prefill_attention
from runtime.engine.library_lm_head import lm_head_argmax, lm_head_logits
from runtime.sites import Bound, SiteCall


class Library:
    """The implementation that runs everything."""

    name = "library"
    digest = None

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``. Raises KeyError for an operation that does not exist."""
        return _OPERATIONS[call.site.operation](call)


def norm_into(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out = round_T(round_T(x * rsqrt(mean(x * x) + eps)) * weight) over the last dim; ``out`` may be ``x``.

    torch's norm without a weight keeps its statistics in float32 and stores the first rounding.
    """
    torch.mul(rms_norm(x, x.shape[-1:], None, eps), weight, out=out)


def rotate(heads: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool) -> None:
    """Rotate ``heads`` ``[rows, heads, rotary_dim]`` in place by ``cos_sin`` ``[rows, rotary_dim]`` float32, rounding
    once."""
    cos, sin = cos_sin[:, None, :].chunk(2, dim=-1)
    a, b = (heads[..., 0::2], heads[..., 1::2]) if interleaved else heads.chunk(2, dim=-1)
    new_a = torch.mul(a, cos).addcmul_(b, sin, value=-1)  # float32: the table's type is the wider one
    new_b = torch.mul(b, cos).addcmul_(a, sin)
    a.copy_(new_a)
    b.copy_(new_b)


def _attention_prelude(call: SiteCall) -> Bound:
    dims, eps = call.dims, call.scalars["eps"]
    heads, kv_heads, head_dim = dims["num_heads"], dims["num_kv_heads"], dims["head_dim"]
    rotary_dim, interleaved = dims["rotary_dim"], bool(dims["rope_interleaved"])
    x, w, bias = call.tensor("x"), call.tensor("w_qkv"), call.tensors["b_qkv"]
    q_norm, k_norm = call.tensors["q_norm"], call.tensors["k_norm"]
    positions, slots, q_out = call.tensor("positions"), call.tensor("slot_mapping"), call.tensor("q_out")
    cos_sin, keys, values = call.tensor("cos_sin"), *_by_slot(call)

    def run() -> None:
        qkv = linear(x, w, bias).view(-1, heads + 2 * kv_heads, head_dim)
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            norm_into(q, q_norm, eps, q)
            norm_into(k, k_norm, eps, k)
        rotate(qkv[:, : heads + kv_heads, :rotary_dim], cos_sin.index_select(0, positions), interleaved)
        q_out.copy_(q)
        rows = slots.long()
        keys.index_copy_(0, rows, k)
        values.index_copy_(0, rows, v)

    return run


def _project_heads(call: SiteCall) -> Bound:
    """The part of a prelude before the rotation: projection and head norms into ``q``, ``k`` and ``v``."""
    x, w, bias, eps = call.tensor("x"), call.tensor("w_qkv"), call.tensors["b_qkv"], call.scalars["eps"]
    q_norm, k_norm = call.tensors["q_norm"], call.tensors["k_norm"]
    outs = [(call.tensor("q"), q_norm), (call.tensor("k"), k_norm), (call.tensor("v"), None)]
    counts = [out.shape[1] for out, _ in outs]
    head_dim = outs[0][0].shape[2]

    def run() -> None:
        heads = torch.split(linear(x, w, bias).view(-1, sum(counts), head_dim), counts, dim=1)
        for part, (out, norm) in zip(heads, outs, strict=True):
            if norm is None:
                out.copy_(part)
            else:
                norm_into(part, norm, eps, out)

    return run


def _rope(call: SiteCall) -> Bound:
    rotary_dim, interleaved = call.dims["rotary_dim"], bool(call.dims["rope_interleaved"])
    parts = [call.tensor(name)[..., :rotary_dim] for name in ("q", "k")]
    cos_sin, positions = call.tensor("cos_sin"), call.tensor("positions")

    def run() -> None:
        rows = cos_sin.index_select(0, positions)
        for part in parts:
            rotate(part, rows, interleaved)

    return run


def _kv_append(call: SiteCall) -> Bound:
    k, v, slots = call.tensor("k"), call.tensor("v"), call.tensor("slot_mapping")
    keys, values = _by_slot(call)

    def run() -> None:
        rows = slots.long()
        keys.index_copy_(0, rows, k)
        values.index_copy_(0, rows, v)

    return run


def _residual_rmsnorm(call: SiteCall) -> Bound:
    x, residual, weight, out = call.tensor("x"), call.tensors["residual"], call.tensor("weight"), call.tensor("out")
    eps = call.scalars["eps"]

    def run() -> None:
        norm_into(x if residual is None else residual.add_(x), weight, eps, out)

    return run


def _o_proj_residual_rmsnorm(call: SiteCall) -> Bound:
    attn, w, residual = call.tensor("attn"), call.tensor("w_o"), call.tensor("residual")
    weight, out, eps = call.tensor("weight"), call.tensor("out"), call.scalars["eps"]

    def run() -> None:
        norm_into(residual.add_(linear(attn, w)), weight, eps, out)

    return run


def _gated_mlp_up(call: SiteCall) -> Bound:
    x, w, out = call.tensor("x"), call.tensor("w_gate_up"), call.tensor("out")

    def run() -> None:
        gate, up = linear(x, w).chunk(2, dim=-1)
        torch.mul(silu(gate), up, out=out)

    return run


def _gated_mlp_down(call: SiteCall) -> Bound:
    x, w, residual = call.tensor("x"), call.tensor("w_down"), call.tensor("residual")

    def run() -> None:
        residual.add_(linear(x, w))

    return run


def _linear(call: SiteCall) -> Bound:
    x, w, bias, out = call.tensor("x"), call.tensor("w"), call.tensors["b"], call.tensor("out")

    def run() -> None:
        out.copy_(linear(x, w, bias))

    def in_place() -> None:
        torch.mm(x, w.t(), out=out)

    return in_place if bias is None and x.is_cuda else run


def _add(call: SiteCall) -> Bound:
    x, residual = call.tensor("x"), call.tensor("residual")

    def run() -> None:
        residual.add_(x)

    return run


def _embed(call: SiteCall) -> Bound:
    ids, table, out = call.tensor("input_ids"), call.tensor("table"), call.tensor("out")

    def run() -> None:
        torch.index_select(table, 0, ids, out=out)

    return run


def _gather_rows(call: SiteCall) -> Bound:
    x, rows, out = call.tensor("x"), call.tensor("rows"), call.tensor("out")

    def run() -> None:
        torch.index_select(x, 0, rows, out=out)

    return run


def _fetch_tokens(call: SiteCall) -> Bound:
    slots, table, out = call.tensor("slots"), call.tensor("table"), call.tensor("out")

    def run() -> None:
        torch.index_select(table, 0, slots, out=out)

    return run


def _publish_tokens(call: SiteCall) -> Bound:
    slots, ids, table = call.tensor("slots"), call.tensor("ids"), call.tensor("table")

    def run() -> None:
        table.index_copy_(0, slots.long(), ids)

    return run


def _by_slot(call: SiteCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value cache as ``[slots, num_kv_heads, head_dim]``."""
    return call.tensor("k_cache").flatten(0, 1), call.tensor("v_cache").flatten(0, 1)


_OPERATIONS: dict[str, Callable[[SiteCall], Bound]] = {
    "attention_prelude": _attention_prelude,
    "paged_decode_attention": decode_attention,
    "prefill_attention": prefill_attention,
    "o_proj_residual_rmsnorm": _o_proj_residual_rmsnorm,
    "gated_mlp_up": _gated_mlp_up,
    "gated_mlp_down": _gated_mlp_down,
    "residual_rmsnorm": _residual_rmsnorm,
    "rope": _rope,
    "kv_append": _kv_append,
    "lm_head_argmax": lm_head_argmax,
    "lm_head_logits": lm_head_logits,
    "project_heads": _project_heads,
    "linear": _linear,
    "add": _add,
    "embed": _embed,
    "gather_rows": _gather_rows,
    "fetch_tokens": _fetch_tokens,
    "publish_tokens": _publish_tokens,
}
