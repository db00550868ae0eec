"""The library path: every operation of a step in plain torch, for any number of rows.

This is what runs where no kernel was chosen, and what every chosen kernel must beat. Each function takes a call and
returns it as a function without arguments, with the contract's semantics and rounding points. Unlike the baselines a
kernel is judged against, nothing here keeps scratch memory between calls: the same functions run prompts of any
length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

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


def normalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``round_T(round_T(x * rsqrt(mean(x * x) + eps)) * weight)`` over the last dim, statistics in float32."""
    return rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight


def rotated(x: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The rotated part of ``x`` ``[rows, heads, rotary_dim]`` by ``cos_sin`` ``[rows, rotary_dim]``, rounded once."""
    cos, sin = cos_sin[:, None, :].chunk(2, dim=-1)
    wide = x.float()
    if interleaved:
        a, b = wide[..., 0::2], wide[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)
    a, b = wide.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


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
        if q_norm is not None and k_norm is not None:
            qkv[:, :heads] = normalised(qkv[:, :heads], q_norm, eps)
            qkv[:, heads : heads + kv_heads] = normalised(qkv[:, heads : heads + kv_heads], k_norm, eps)
        turned = qkv[:, : heads + kv_heads, :rotary_dim]
        turned.copy_(rotated(turned, cos_sin[positions], interleaved))
        q_out.copy_(qkv[:, :heads])
        keys[slots] = qkv[:, heads : heads + kv_heads]
        values[slots] = qkv[:, heads + kv_heads :]

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
            out.copy_(part if norm is None else normalised(part, norm, eps))

    return run


def _rope(call: SiteCall) -> Bound:
    rotary_dim, interleaved = call.dims["rotary_dim"], bool(call.dims["rope_interleaved"])
    parts = [call.tensor(name)[..., :rotary_dim] for name in ("q", "k")]
    cos_sin, positions = call.tensor("cos_sin"), call.tensor("positions")

    def run() -> None:
        rows = cos_sin[positions]
        for part in parts:
            part.copy_(rotated(part, rows, interleaved))

    return run


def _kv_append(call: SiteCall) -> Bound:
    k, v, slots = call.tensor("k"), call.tensor("v"), call.tensor("slot_mapping")
    keys, values = _by_slot(call)

    def run() -> None:
        keys[slots] = k
        values[slots] = v

    return run


def _residual_rmsnorm(call: SiteCall) -> Bound:
    x, residual, weight, out = call.tensor("x"), call.tensors["residual"], call.tensor("weight"), call.tensor("out")
    eps = call.scalars["eps"]

    def run() -> None:
        out.copy_(normalised(x if residual is None else residual.add_(x), weight, eps))

    return run


def _o_proj_residual_rmsnorm(call: SiteCall) -> Bound:
    attn, w, residual = call.tensor("attn"), call.tensor("w_o"), call.tensor("residual")
    weight, out, eps = call.tensor("weight"), call.tensor("out"), call.scalars["eps"]

    def run() -> None:
        out.copy_(normalised(residual.add_(linear(attn, w)), weight, eps))

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

    return run


def _add(call: SiteCall) -> Bound:
    x, residual = call.tensor("x"), call.tensor("residual")

    def run() -> None:
        residual.add_(x)

    return run


def _embed(call: SiteCall) -> Bound:
    ids, table, out = call.tensor("input_ids"), call.tensor("table"), call.tensor("out")

    def run() -> None:
        out.copy_(embedding(ids, table))

    return run


def _gather_rows(call: SiteCall) -> Bound:
    x, rows, out = call.tensor("x"), call.tensor("rows"), call.tensor("out")

    def run() -> None:
        out.copy_(x[rows])

    return run


def _fetch_tokens(call: SiteCall) -> Bound:
    slots, table, out = call.tensor("slots"), call.tensor("table"), call.tensor("out")

    def run() -> None:
        out.copy_(table[slots])

    return run


def _publish_tokens(call: SiteCall) -> Bound:
    slots, ids, table = call.tensor("slots"), call.tensor("ids"), call.tensor("table")

    def run() -> None:
        table[slots] = ids

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
