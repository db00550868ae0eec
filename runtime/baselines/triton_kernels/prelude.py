"""QKV projection into float32 parts, then norm, rotation and cache write a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.projection import parts_of, sum_parts
from runtime.baselines.triton_kernels.tiles import Tiles, cut, power_of_2


@triton.jit
def _head_values(parts_ptr, bias_ptr, at, offsets, ok, STRIDE: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr):
    y = sum_parts(parts_ptr, at + offsets, ok, STRIDE, PARTS)
    if BIAS:
        y += tl.load(bias_ptr + offsets, mask=ok, other=0.0).to(tl.float32)
    return y


@triton.jit
def _scaled(y, r, gamma_ptr, offsets, ok):
    """The normalised value is rounded before gamma; the product stays in float32."""
    gamma = tl.load(gamma_ptr + offsets, mask=ok, other=0.0)
    return (y * r).to(gamma.dtype).to(tl.float32) * gamma.to(tl.float32)


@triton.jit
def _finish(
    parts_ptr,
    bias_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    eps,
    M: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    rest_count: tl.constexpr = D - 2 * HALF
    row = token * width + head * D
    slot = tl.load(slots_ptr + token).to(tl.int64)
    i = tl.arange(0, BLOCK)
    ok = i < HALF
    if INTERLEAVED:
        a_i = 2 * i
        b_i = 2 * i + 1
    else:
        a_i = i
        b_i = i + HALF
    rest_i = 2 * HALF + tl.arange(0, BLOCK_REST)
    rest_ok = rest_i < D
    bias_head = bias_ptr + head * D
    a = _head_values(parts_ptr, bias_head, row, a_i, ok, M * width, PARTS, HAS_BIAS)
    b = _head_values(parts_ptr, bias_head, row, b_i, ok, M * width, PARTS, HAS_BIAS)
    rest = tl.zeros((BLOCK_REST,), tl.float32)
    if rest_count > 0:
        rest = _head_values(parts_ptr, bias_head, row, rest_i, rest_ok, M * width, PARTS, HAS_BIAS)

    if head < HEADS + KV_HEADS:
        if HAS_NORM:
            squares = tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)
            if rest_count > 0:
                squares += tl.sum(rest * rest, axis=0)
            r = 1.0 / tl.sqrt(squares / D + eps)
            gamma_ptr = k_norm_ptr
            if head < HEADS:
                gamma_ptr = q_norm_ptr
            a = _scaled(a, r, gamma_ptr, a_i, ok)
            b = _scaled(b, r, gamma_ptr, b_i, ok)
            if rest_count > 0:
                rest = _scaled(rest, r, gamma_ptr, rest_i, rest_ok)
        table = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF)
        cos = tl.load(table + i, mask=ok, other=0.0)
        sin = tl.load(table + HALF + i, mask=ok, other=0.0)
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned

    to = q_out_ptr + (token * HEADS + head).to(tl.int64) * D
    if head >= HEADS + KV_HEADS:
        to = v_cache_ptr + (slot * KV_HEADS + head - HEADS - KV_HEADS) * D
    elif head >= HEADS:
        to = k_cache_ptr + (slot * KV_HEADS + head - HEADS) * D
    tl.store(to + a_i, a.to(q_out_ptr.dtype.element_ty), mask=ok)
    tl.store(to + b_i, b.to(q_out_ptr.dtype.element_ty), mask=ok)
    if rest_count > 0:
        tl.store(to + rest_i, rest.to(q_out_ptr.dtype.element_ty), mask=rest_ok)


def attention_prelude(
    dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float], tiles: Tiles | None = None
) -> Callable[[], None]:
    """Two launches: a head's norm needs the whole head, and a head is too few rows to stream weights with."""
    x, w_qkv, q_out = (need(tensors, n) for n in ("x", "w_qkv", "q_out"))
    k_cache, v_cache, slots = (need(tensors, n) for n in ("k_cache", "v_cache", "slot_mapping"))
    table, positions = need(tensors, "cos_sin"), need(tensors, "positions")
    # Where a tensor is absent its pointer is never read; any of the right type will do.
    bias = need(tensors, "b_qkv") if dims["has_qkv_bias"] else x
    q_norm, k_norm = (need(tensors, n) if dims["has_qk_norm"] else x for n in ("q_norm", "k_norm"))
    heads, kv_heads, half = dims["num_heads"], dims["num_kv_heads"], dims["rotary_dim"] // 2
    how = cut("attention_prelude", w_qkv.shape[0], w_qkv.shape[1], x.shape[0], x, may_split=True, tiles=tiles)
    parts, fill = parts_of(w_qkv, x, how)
    grid = (x.shape[0], heads + 2 * kv_heads)

    def call() -> None:
        fill()
        _finish[grid](
            parts,
            bias,
            q_norm,
            k_norm,
            table,
            positions,
            slots,
            q_out,
            k_cache,
            v_cache,
            scalars["eps"],
            M=x.shape[0],
            HEADS=heads,
            KV_HEADS=kv_heads,
            D=dims["head_dim"],
            HALF=half,
            PARTS=how.grid[1],
            HAS_BIAS=bool(dims["has_qkv_bias"]),
            HAS_NORM=bool(dims["has_qk_norm"]),
            INTERLEAVED=bool(dims["rope_interleaved"]),
            BLOCK=power_of_2(half),
            BLOCK_REST=power_of_2(max(1, dims["head_dim"] - 2 * half)),
            num_warps=1,
        )

    return call


IMPLEMENTATIONS = {"attention_prelude": attention_prelude}
