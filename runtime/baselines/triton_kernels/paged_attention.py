"""Paged decode attention: keys and values split over programs, float32 partial results, a merge.

The schedule is made on the device from ``seq_lens``: the tokens of all sequences are cut into chunks of one size, as
many as fill the GPU, and a program takes one chunk of one key head with all the query heads that share it. So a
captured graph stays balanced when lengths change between replays, short or long, even or ragged, and no host reads a
length. A sequence of one chunk is written at once; the merge passes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl

from runtime.baselines.scratch import scratch
from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import multiprocessors, power_of_2

_LOG2_E = 1.4426950408889634
# Programs a multiprocessor the chunks aim at: two, each with a few tiles in flight.
_PROGRAMS = 2
# Bytes of a key tile: 64 tokens of 128 two-byte elements.
_TILE_BYTES = 16384
_WIDEST_TILE = 64
# Query heads a program, when a group is larger.
_WIDEST_GROUP = 64
_MERGED_AT_ONCE = 16


@triton.jit
def _schedule(
    lens_ptr,
    TOKENS: tl.constexpr,
    TOKENS_P2: tl.constexpr,
    WINDOW: tl.constexpr,
    TARGET: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Every row's length, the tokens of it that count, and its number of chunks, int32 [TOKENS_P2] each."""
    row = tl.arange(0, TOKENS_P2)
    lens = tl.load(lens_ptr + row, mask=row < TOKENS, other=0)
    counted = lens
    if WINDOW > 0:
        counted = tl.minimum(lens, WINDOW)
    tiles = (counted + BLOCK_T - 1) // BLOCK_T
    chunk = tl.maximum((tl.sum(tiles, axis=0) + TARGET - 1) // TARGET, 1)
    return lens, counted, (tiles + chunk - 1) // chunk


@triton.jit
def _at(values, row, TOKENS_P2: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, TOKENS_P2) == row, values, 0), axis=0)


@triton.jit
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    lens_ptr,
    out_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    scale_log2,
    table_columns,
    TOKENS: tl.constexpr,
    TOKENS_P2: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    TARGET: tl.constexpr,
    BLOCK_T: tl.constexpr,
    DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    slot = tl.program_id(0)
    kv_head = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    lens, counted, chunks = _schedule(lens_ptr, TOKENS, TOKENS_P2, WINDOW, TARGET, BLOCK_T)
    if slot >= tl.sum(chunks, axis=0):
        return
    row = tl.sum((tl.cumsum(chunks, axis=0) <= slot).to(tl.int32), axis=0)
    before = tl.sum(tl.where(tl.arange(0, TOKENS_P2) < row, chunks, 0), axis=0)
    length = _at(lens, row, TOKENS_P2)
    count = _at(counted, row, TOKENS_P2)
    pieces = _at(chunks, row, TOKENS_P2)
    # The row's chunks are made equal, so that its last one is not a stub.
    size = ((count + pieces - 1) // pieces + BLOCK_T - 1) // BLOCK_T * BLOCK_T
    start = length - count + (slot - before) * size
    end = tl.minimum(start + size, length)

    member = tl.program_id(2) * BLOCK_G + tl.arange(0, BLOCK_G)
    head = kv_head * group + member
    head_ok = member < group
    d = tl.arange(0, BLOCK_D)
    d_ok = d < D
    q_ok = head_ok[:, None] & d_ok[None, :]
    q_at = (row * HEADS + head)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=q_ok, other=0.0)
    top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for first in tl.range(start, end, BLOCK_T, num_stages=STAGES):
        token = first + tl.arange(0, BLOCK_T)
        ok = token < end
        block = tl.load(table_ptr + row.to(tl.int64) * table_columns + token // PAGE, mask=ok, other=0)
        at = ((block.to(tl.int64) * PAGE + token % PAGE) * KV_HEADS + kv_head) * D
        kv_ok = ok[:, None] & d_ok[None, :]
        k = tl.load(k_ptr + at[:, None] + d[None, :], mask=kv_ok, other=0.0)
        v = tl.load(v_ptr + at[:, None] + d[None, :], mask=kv_ok, other=0.0)
        if DOT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        else:
            scores = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1)[None, :]
        scores = tl.where(ok[None, :], scores * scale_log2, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        if DOT:
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        else:
            acc += tl.sum(tl.reshape(p, (BLOCK_T, 1)) * v.to(tl.float32), axis=0)[None, :]
        top = new_top

    if pieces == 1:
        tl.store(out_ptr + q_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=q_ok)
    else:
        part = slot * HEADS + head
        tl.store(acc_ptr + part[:, None] * D + d[None, :], acc, mask=q_ok)
        tl.store(max_ptr + part, top, mask=head_ok)
        tl.store(sum_ptr + part, total, mask=head_ok)


@triton.jit
def _merge(
    lens_ptr,
    out_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    TOKENS: tl.constexpr,
    TOKENS_P2: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,
    TARGET: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    _, _, chunks = _schedule(lens_ptr, TOKENS, TOKENS_P2, WINDOW, TARGET, BLOCK_T)
    pieces = _at(chunks, row, TOKENS_P2)
    if pieces == 1:
        return
    first = tl.sum(tl.where(tl.arange(0, TOKENS_P2) < row, chunks, 0), axis=0)
    d = tl.arange(0, BLOCK_D)
    d_ok = d < D
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for start in tl.range(0, pieces, BLOCK_S):
        piece = start + tl.arange(0, BLOCK_S)
        ok = piece < pieces
        part = (first + piece) * HEADS + head
        values = tl.load(acc_ptr + part[:, None] * D + d[None, :], mask=ok[:, None] & d_ok[None, :], other=0.0)
        tops = tl.load(max_ptr + part, mask=ok, other=float("-inf"))
        sums = tl.load(sum_ptr + part, mask=ok, other=0.0)
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        weight = tl.exp2(tops - new_top)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(sums * weight, axis=0)
        acc = acc * shrink + tl.sum(values * weight[:, None], axis=0)
        top = new_top
    tl.store(out_ptr + (row * HEADS + head) * D + d, (acc / total).to(out_ptr.dtype.element_ty), mask=d_ok)


def paged_decode_attention(
    dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Two launches, whatever the lengths."""
    q, k_cache, v_cache, out = (need(tensors, n) for n in ("q", "k_cache", "v_cache", "out"))
    table, lens = need(tensors, "block_table"), need(tensors, "seq_lens")
    tokens, heads, width = q.shape
    kv_heads, group = dims["num_kv_heads"], heads // dims["num_kv_heads"]
    block_d = power_of_2(width)
    block_t = max(16, min(_WIDEST_TILE, _TILE_BYTES // (block_d * q.element_size())))
    block_g = 1 if group == 1 else max(16, min(_WIDEST_GROUP, power_of_2(group)))
    groups = -(-group // block_g)
    # Chunks to aim at, a key head. Rounding up adds at most one a sequence; capacity bounds them too.
    target = max(1, -(-_PROGRAMS * multiprocessors(q.device) // (kv_heads * groups)))
    longest = dims["max_blocks_per_seq"] * dims["block_size"]
    if dims["sliding_window"]:
        longest = min(longest, dims["sliding_window"])
    slots = min(target + tokens, tokens * -(-longest // block_t))
    acc = scratch("acc", (slots, heads, width), torch.float32, q.device)
    tops = scratch("tops", (slots, heads), torch.float32, q.device)
    sums = scratch("sums", (slots, heads), torch.float32, q.device)
    schedule = {
        "TOKENS": tokens,
        "TOKENS_P2": power_of_2(tokens),
        "WINDOW": dims["sliding_window"],
        "TARGET": target,
        "BLOCK_T": block_t,
        "HEADS": heads,
        "D": width,
        "BLOCK_D": block_d,
    }
    stages = 3 if block_t * block_d * q.element_size() <= _TILE_BYTES else 2

    def call() -> None:
        _attend[(slots, kv_heads, groups)](
            q,
            k_cache,
            v_cache,
            table,
            lens,
            out,
            acc,
            tops,
            sums,
            scalars["scale"] * _LOG2_E,
            table.shape[1],
            KV_HEADS=kv_heads,
            BLOCK_G=block_g,
            PAGE=dims["block_size"],
            DOT=block_g > 1,
            STAGES=stages,
            num_warps=4,
            num_stages=stages,
            **schedule,
        )
        if slots > tokens:
            _merge[(tokens, heads)](lens, out, acc, tops, sums, BLOCK_S=_MERGED_AT_ONCE, num_warps=4, **schedule)

    return call


IMPLEMENTATIONS = {"paged_decode_attention": paged_decode_attention}
