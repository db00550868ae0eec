"""References of the decoder contracts."""

from __future__ import annotations

import torch

from validator.references.arithmetic import attend, kept, linear, rms_norm, rotate, rounded
from validator.references.call import Call
from validator.references.expected import Expected, written_rows


def residual_rmsnorm(call: Call) -> dict[str, Expected]:
    """The sum is binding before the variance; it is also an output where there is a residual."""
    x = call["x"]
    if not call.dims["has_residual"]:
        return {"out": Expected(rms_norm(x.double(), call["weight"], call.scalars["eps"], x.dtype))}
    total = x.double() + call["residual"].double()
    out = rms_norm(rounded(total, x.dtype), call["weight"], call.scalars["eps"], x.dtype)
    return {"residual": Expected(total), "out": Expected(out)}


def rope(call: Call) -> dict[str, Expected]:
    """Both styles; elements from ``rotary_dim`` on are not written."""
    dims = call.dims
    width, interleaved = dims["rotary_dim"], bool(dims["rope_interleaved"])
    columns = width if width < dims["head_dim"] else None
    return {
        name: Expected(
            rotate(call[name], call["cos_sin"], call["positions"], width, interleaved),
            columns=columns,
        )
        for name in ("q", "k")
    }


def kv_append(call: Call) -> dict[str, Expected]:
    """An exact copy into the slots."""
    slots = call["slot_mapping"]
    return {"k_cache": written_rows(call["k"], slots), "v_cache": written_rows(call["v"], slots)}


def attention_prelude(call: Call) -> dict[str, Expected]:
    """Projection, head norms (rounded before gamma), rotation and the cache rows."""
    dims, x = call.dims, call["x"]
    tokens, heads, kv_heads, width = x.shape[0], dims["num_heads"], dims["num_kv_heads"], dims["head_dim"]
    y = kept(call.tensors, "y", lambda: linear(x, call["w_qkv"], call.optional("b_qkv"))).view(
        tokens, heads + 2 * kv_heads, width
    )
    parts = list(torch.split(y, [heads, kv_heads, kv_heads], dim=1))
    if dims["has_qk_norm"]:
        for i, gamma in enumerate(("q_norm", "k_norm")):
            parts[i] = rms_norm(parts[i], call[gamma], call.scalars["eps"], x.dtype)
    for i in (0, 1):
        turned = rotate(
            parts[i], call["cos_sin"], call["positions"], dims["rotary_dim"], bool(dims["rope_interleaved"])
        )
        parts[i] = torch.cat((turned, parts[i][..., dims["rotary_dim"] :]), dim=-1)
    q, k, v = parts
    slots = call["slot_mapping"]
    return {"q_out": Expected(q), "k_cache": written_rows(k, slots), "v_cache": written_rows(v, slots)}


def gated_mlp_up(call: Call) -> dict[str, Expected]:
    """silu(g) * u."""
    g, u = linear(call["x"], call["w_gate_up"]).chunk(2, dim=1)
    return {"out": Expected(torch.nn.functional.silu(g) * u)}


def gated_mlp_down(call: Call) -> dict[str, Expected]:
    """The projection is rounded before it is added."""
    y = rounded(kept(call.tensors, "y", lambda: linear(call["x"], call["w_down"])), call["x"].dtype)
    return {"residual": Expected(call["residual"].double() + y)}


def o_proj_residual_rmsnorm(call: Call) -> dict[str, Expected]:
    """The projection is rounded before the add, the sum before the variance."""
    storage = call["attn"].dtype
    y = rounded(kept(call.tensors, "y", lambda: linear(call["attn"], call["w_o"])), storage)
    total = y + call["residual"].double()
    out = rms_norm(rounded(total, storage), call["weight"], call.scalars["eps"], storage)
    return {"residual": Expected(total), "out": Expected(out)}


def lm_head_argmax(call: Call) -> dict[str, Expected]:
    """Lowest index of the largest float64 logit; the logits go along for the margin rule."""
    logits = linear(call["x"], call["w"])
    best = logits.max(dim=1).values
    # argmax promises the first maximum only on some devices: take the lowest index explicitly.
    ids = torch.arange(logits.shape[1], device=logits.device)
    first = torch.where(logits == best[:, None], ids, logits.shape[1]).min(dim=1).values
    terms = (call["x"].double() * call["w"][first].double()).square().sum(1).sqrt()
    return {"out_ids": Expected(first, scores=logits), "out_max": Expected(best, terms=terms)}


def paged_decode_attention(call: Call) -> dict[str, Expected]:
    """One sequence at a time; only the blocks that hold its tokens are followed."""
    dims, q = call.dims, call["q"].double()
    kv_heads, size, window = dims["num_kv_heads"], dims["block_size"], dims["sliding_window"]
    out = torch.empty_like(q)
    for t, length in enumerate(call["seq_lens"].tolist()):
        blocks = call["block_table"][t, : -(-length // size)].long()
        first = max(0, length - window) if window else 0
        k, v = (call[name][blocks].flatten(0, 1)[first:length].double().transpose(0, 1) for name in _CACHES)
        grouped = q[t].view(kv_heads, -1, dims["head_dim"])
        out[t] = attend(grouped, k, v, call.scalars["scale"]).flatten(0, 1)
    return {"out": Expected(out)}


_CACHES = ("k_cache", "v_cache")
