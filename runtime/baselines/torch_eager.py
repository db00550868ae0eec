"""torch, one operation after the other (cuBLAS and oneDNN underneath): what a model runs without any compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from runtime.baselines.registry import Prepare
from runtime.baselines.scratch import scratch
from runtime.baselines.torch_sequences import Rotation, Tensors, append, need, project, rms_norm_into


def residual_rmsnorm(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """Add, norm, multiply."""
    x, weight, out = (need(tensors, n) for n in ("x", "weight", "out"))
    eps = scalars["eps"]
    if not dims["has_residual"]:
        return lambda: rms_norm_into(x, weight, eps, out)
    residual = need(tensors, "residual")

    def call() -> None:
        residual.add_(x)
        rms_norm_into(residual, weight, eps, out)

    return call


def rope(dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """The usual pointwise sequence, products and sums in float32."""
    q, k = need(tensors, "q"), need(tensors, "k")
    rotation = Rotation(dims, tensors)

    def call() -> None:
        rows = rotation.rows()
        rotation.rotate(q, rows, q)
        rotation.rotate(k, rows, k)

    return call


def kv_append(_dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """Two index copies."""
    k, v, k_cache, v_cache, slots = (need(tensors, n) for n in ("k", "v", "k_cache", "v_cache", "slot_mapping"))

    def call() -> None:
        wide = slots.long()
        append(k_cache, wide, k)
        append(v_cache, wide, v)

    return call


def attention_prelude(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """One projection, a norm and a product for queries and for keys, the rotations, two index copies."""
    x, w_qkv, q_out = (need(tensors, n) for n in ("x", "w_qkv", "q_out"))
    k_cache, v_cache, slots = (need(tensors, n) for n in ("k_cache", "v_cache", "slot_mapping"))
    heads, kv_heads, width = dims["num_heads"], dims["num_kv_heads"], dims["head_dim"]
    y = scratch("qkv", (x.shape[0], w_qkv.shape[0]), x.dtype, x.device)
    q, k, v = torch.split(y.view(x.shape[0], -1, width), [heads, kv_heads, kv_heads], dim=1)
    bias, rotation, eps = tensors.get("b_qkv"), Rotation(dims, tensors), scalars["eps"]
    if dims["has_qk_norm"]:
        q_norm, k_norm = need(tensors, "q_norm"), need(tensors, "k_norm")
    partial = dims["rotary_dim"] < width

    def call() -> None:
        project(x, w_qkv, bias, y)
        if dims["has_qk_norm"]:
            rms_norm_into(q, q_norm, eps, q_out)
            rms_norm_into(k, k_norm, eps, k)
        elif partial:
            q_out.copy_(q)
        rows = rotation.rows()
        rotation.rotate(q_out if dims["has_qk_norm"] else q, rows, q_out)
        rotation.rotate(k, rows, k)
        wide = slots.long()
        append(k_cache, wide, k)
        append(v_cache, wide, v)

    return call


def gated_mlp_up(dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """One projection, SiLU in place, one product."""
    x, weight, out = (need(tensors, n) for n in ("x", "w_gate_up", "out"))
    y = scratch("gate_up", (x.shape[0], weight.shape[0]), x.dtype, x.device)
    gate, up = torch.split(y, dims["intermediate_size"], dim=1)

    def call() -> None:
        project(x, weight, None, y)
        functional.silu(gate, inplace=True)
        torch.mul(gate, up, out=out)

    return call


def gated_mlp_down(_dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """The projection is stored (a binding rounding point), then added."""
    x, weight, residual = (need(tensors, n) for n in ("x", "w_down", "residual"))
    y = scratch("projected", tuple(residual.shape), x.dtype, x.device)

    def call() -> None:
        project(x, weight, None, y)
        residual.add_(y)

    return call


def o_proj_residual_rmsnorm(
    _dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Projection, add, norm, multiply."""
    attn, w_o, residual, weight, out = (need(tensors, n) for n in ("attn", "w_o", "residual", "weight", "out"))
    y = scratch("projected", tuple(residual.shape), attn.dtype, attn.device)

    def call() -> None:
        project(attn, w_o, None, y)
        residual.add_(y)
        rms_norm_into(residual, weight, scalars["eps"], out)

    return call


def lm_head_argmax(dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """Float32 logits, then max, which gives the first of equal values.

    A GPU multiplies narrow types into float32 directly. A CPU does not: there see _refined.
    """
    x, w, ids, best = (need(tensors, n) for n in ("x", "w", "out_ids", "out_max"))
    if not x.is_cuda and x.dtype != torch.float32:
        return _refined(x, w, ids, best)
    logits = scratch("logits", (x.shape[0], dims["vocab_size"]), torch.float32, x.device)
    wide_ids = scratch("ids", tuple(ids.shape), torch.int64, x.device)
    narrow = x.dtype != torch.float32

    def call() -> None:
        if narrow:
            torch.mm(x, w.t(), out_dtype=torch.float32, out=logits)
        else:
            torch.mm(x, w.t(), out=logits)
        torch.max(logits, 1, out=(best, wide_ids))
        ids.copy_(wide_ids)

    return call


def _refined(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, best: torch.Tensor) -> Callable[[], None]:
    """Logits rounded to the storage type first; those the rounding cannot tell from the best once more in float32.

    Rounding keeps the order, so the largest logit is among those within a step or two of the largest rounded one.
    """
    rounded = scratch("rounded", (x.shape[0], w.shape[0]), x.dtype, x.device)
    margin = 2 * torch.finfo(x.dtype).eps

    def call() -> None:
        torch.mm(x, w.t(), out=rounded)
        top = rounded.amax(dim=1, keepdim=True).float()
        close = (rounded >= top - margin * top.abs()) | (rounded == top)
        for t in range(x.shape[0]):
            rows = close[t].nonzero()[:, 0]
            exact = torch.mv(w.index_select(0, rows).float(), x[t].float())
            value, first = exact.max(0)
            best[t] = value
            ids[t] = rows[first]

    return call


def encoder_qkv(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """LayerNorm and one projection."""
    x, weight, bias, out = (need(tensors, n) for n in ("x", "w_qkv", "b_qkv", "qkv"))
    flat, normed = out.view(x.shape[0], -1), _normed(dims, tensors, scalars)
    return lambda: project(normed(), weight, bias, flat)


def encoder_mlp(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """LayerNorm, projection, GELU in place (fused into the product where the library can), projection, add."""
    x, w_up, b_up, w_down, b_down, out = (need(tensors, n) for n in ("x", "w_up", "b_up", "w_down", "b_down", "out"))
    normed = _normed(dims, tensors, scalars)
    up = scratch("up", (x.shape[0], w_up.shape[0]), x.dtype, x.device)
    approximate = "tanh" if dims["gelu_tanh"] else "none"
    # cuBLASLt's epilogue is the tanh approximation.
    fused = bool(dims["gelu_tanh"]) and x.is_cuda and x.dtype != torch.float32

    def call() -> None:
        if fused:
            torch._addmm_activation(b_up, normed(), w_up.t(), use_gelu=True, out=up)
        else:
            project(normed(), w_up, b_up, up)
            torch.ops.aten.gelu_(up, approximate=approximate)
        project(up, w_down, b_down, out)
        out.add_(x)

    return call


def _normed(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], torch.Tensor]:
    x = need(tensors, "x")
    if not dims["has_pre_norm"]:
        return lambda: x
    weight, bias, eps = need(tensors, "ln_weight"), need(tensors, "ln_bias"), scalars["eps"]
    return lambda: functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


IMPLEMENTATIONS: Mapping[str, Prepare] = {
    "residual_rmsnorm": residual_rmsnorm,
    "rope": rope,
    "kv_append": kv_append,
    "attention_prelude": attention_prelude,
    "gated_mlp_up": gated_mlp_up,
    "gated_mlp_down": gated_mlp_down,
    "o_proj_residual_rmsnorm": o_proj_residual_rmsnorm,
    "lm_head_argmax": lm_head_argmax,
    "encoder_qkv": encoder_qkv,
    "encoder_mlp": encoder_mlp,
}
