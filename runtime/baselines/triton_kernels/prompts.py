"""What stands between the matrix products of a step with prompts, for any number of rows without compiling anew.

The products are the library's; around them torch takes a dozen passes over the rows, and these take one each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import power_of_2

_HEADS = 4
_GATE_BLOCK = 1024


@triton.jit
def _normed(y, r, gamma_ptr, i, ok):
    """Rounded before gamma; the product stays in float32."""
    gamma = tl.load(gamma_ptr + i, mask=ok, other=0.0)
    return (y * r[:, None]).to(gamma.dtype).to(tl.float32) * gamma.to(tl.float32)[None, :]


@triton.jit
def _finish_heads(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    Q_PROGRAMS: tl.constexpr,
    KV_PROGRAMS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    # 0 for queries, 1 for keys, 2 for values.
    kind = (program >= Q_PROGRAMS).to(tl.int32) + (program >= Q_PROGRAMS + KV_PROGRAMS).to(tl.int32)
    count = tl.where(kind == 0, HEADS, KV_HEADS)
    skipped = tl.where(kind == 0, 0, HEADS + (kind - 1) * KV_HEADS)
    first = (program - tl.where(kind == 0, 0, Q_PROGRAMS + (kind - 1) * KV_PROGRAMS)) * BLOCK_HEADS
    to_ptr = q_out_ptr + token * (HEADS * D)
    if kind == 2:
        to_ptr = v_cache_ptr + slot * (KV_HEADS * D)
    elif kind == 1:
        to_ptr = k_cache_ptr + slot * (KV_HEADS * D)
    head = first + tl.arange(0, BLOCK_HEADS)
    head_ok = head < count
    from_ptr = qkv_ptr + token * ((HEADS + 2 * KV_HEADS) * D) + skipped * D
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
    at = (head * D)[:, None]
    both = head_ok[:, None] & ok[None, :]
    rest_both = head_ok[:, None] & rest_ok[None, :]
    a = tl.load(from_ptr + at + a_i[None, :], mask=both, other=0.0).to(tl.float32)
    b = tl.load(from_ptr + at + b_i[None, :], mask=both, other=0.0).to(tl.float32)
    rest = tl.load(from_ptr + at + rest_i[None, :], mask=rest_both, other=0.0).to(tl.float32)
    if kind < 2:
        if HAS_NORM:
            squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1) + tl.sum(rest * rest, axis=1)
            r = 1.0 / tl.sqrt(squares / D + eps)
            gamma_ptr = k_norm_ptr
            if kind == 0:
                gamma_ptr = q_norm_ptr
            a = _normed(a, r, gamma_ptr, a_i, ok)
            b = _normed(b, r, gamma_ptr, b_i, ok)
            rest = _normed(rest, r, gamma_ptr, rest_i, rest_ok)
        table = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF)
        cos = tl.load(table + i, mask=ok, other=0.0)[None, :]
        sin = tl.load(table + HALF + i, mask=ok, other=0.0)[None, :]
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned
    tl.store(to_ptr + at + a_i[None, :], a.to(q_out_ptr.dtype.element_ty), mask=both)
    tl.store(to_ptr + at + b_i[None, :], b.to(q_out_ptr.dtype.element_ty), mask=both)
    tl.store(to_ptr + at + rest_i[None, :], rest.to(q_out_ptr.dtype.element_ty), mask=rest_both)


@triton.jit
def _gate(gate_up_ptr, out_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < N
    gate = tl.load(gate_up_ptr + token * (2 * N) + i, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * (2 * N) + N + i, mask=ok, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * N + i, out.to(out_ptr.dtype.element_ty), mask=ok)


def finish_heads(
    dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]
) -> Callable[[torch.Tensor], None]:
    """The rest of ``attention_prelude`` after its product: takes ``qkv`` ``[rows, (heads + 2 kv_heads) * head_dim]``
    with the bias in it, and writes queries, keys and values where they belong."""
    q_out, k_cache, v_cache = (need(tensors, n) for n in ("q_out", "k_cache", "v_cache"))
    table, positions, slots = (need(tensors, n) for n in ("cos_sin", "positions", "slot_mapping"))
    # Where there is no norm its pointer is never read; any of the right type will do.
    q_norm, k_norm = (need(tensors, n) if dims["has_qk_norm"] else q_out for n in ("q_norm", "k_norm"))
    heads, kv_heads, half = dims["num_heads"], dims["num_kv_heads"], dims["rotary_dim"] // 2
    q_programs, kv_programs = -(-heads // _HEADS), -(-kv_heads // _HEADS)
    grid = (q_out.shape[0], q_programs + 2 * kv_programs)

    def finish(qkv: torch.Tensor) -> None:
        _finish_heads[grid](
            qkv,
            q_norm,
            k_norm,
            table,
            positions,
            slots,
            q_out,
            k_cache,
            v_cache,
            scalars["eps"],
            HEADS=heads,
            KV_HEADS=kv_heads,
            D=dims["head_dim"],
            HALF=half,
            HAS_NORM=bool(dims["has_qk_norm"]),
            INTERLEAVED=bool(dims["rope_interleaved"]),
            BLOCK_HEADS=_HEADS,
            BLOCK=power_of_2(half),
            BLOCK_REST=power_of_2(max(1, dims["head_dim"] - 2 * half)),
            Q_PROGRAMS=q_programs,
            KV_PROGRAMS=kv_programs,
            num_warps=2,
        )

    return finish


def gate(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` ``[rows, n]`` = silu(gate) * up of ``gate_up`` ``[rows, 2 n]``, rounded once."""
    rows, n = out.shape
    _gate[(rows, -(-n // _GATE_BLOCK))](gate_up, out, N=n, BLOCK=_GATE_BLOCK, num_warps=4)
