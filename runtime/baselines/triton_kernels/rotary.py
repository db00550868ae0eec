"""Rotary embedding of queries and keys in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import power_of_2

_HEADS = 4


@triton.jit
def _rotate(
    heads_ptr,
    first,
    cos,
    sin,
    token,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.arange(0, BLOCK)
    head = first + tl.arange(0, BLOCK_HEADS)
    row = (token.to(tl.int64) * HEADS + head) * HEAD_DIM
    if INTERLEAVED:
        a_at = heads_ptr + row[:, None] + (2 * i)[None, :]
        b_at = a_at + 1
    else:
        a_at = heads_ptr + row[:, None] + i[None, :]
        b_at = a_at + HALF
    ok = (head < HEADS)[:, None] & (i < HALF)[None, :]
    a = tl.load(a_at, mask=ok, other=0.0)
    b = tl.load(b_at, mask=ok, other=0.0)
    wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
    tl.store(a_at, (wide_a * cos[None, :] - wide_b * sin[None, :]).to(a.dtype), mask=ok)
    tl.store(b_at, (wide_b * cos[None, :] + wide_a * sin[None, :]).to(a.dtype), mask=ok)


@triton.jit
def _rope(
    q_ptr,
    k_ptr,
    cos_sin_ptr,
    positions_ptr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERY_PROGRAMS: tl.constexpr,
):
    token = tl.program_id(0)
    program = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    table = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF)
    cos = tl.load(table + i, mask=i < HALF, other=0.0)
    sin = tl.load(table + HALF + i, mask=i < HALF, other=0.0)
    if program < QUERY_PROGRAMS:
        first = program * BLOCK_HEADS
        _rotate(q_ptr, first, cos, sin, token, NUM_HEADS, HEAD_DIM, HALF, INTERLEAVED, BLOCK_HEADS, BLOCK)
    else:
        first = (program - QUERY_PROGRAMS) * BLOCK_HEADS
        _rotate(k_ptr, first, cos, sin, token, NUM_KV_HEADS, HEAD_DIM, HALF, INTERLEAVED, BLOCK_HEADS, BLOCK)


def rope(dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """One launch, a few heads a program."""
    q, k, table, positions = (need(tensors, n) for n in ("q", "k", "cos_sin", "positions"))
    heads, kv_heads, half = dims["num_heads"], dims["num_kv_heads"], dims["rotary_dim"] // 2
    query_programs = -(-heads // _HEADS)
    grid = (q.shape[0], query_programs + -(-kv_heads // _HEADS))

    def call() -> None:
        _rope[grid](
            q,
            k,
            table,
            positions,
            NUM_HEADS=heads,
            NUM_KV_HEADS=kv_heads,
            HEAD_DIM=dims["head_dim"],
            HALF=half,
            INTERLEAVED=bool(dims["rope_interleaved"]),
            BLOCK_HEADS=_HEADS,
            BLOCK=power_of_2(half),
            QUERY_PROGRAMS=query_programs,
            num_warps=2,
        )

    return call


IMPLEMENTATIONS = {"rope": rope}
