"""The product every projection kernel is built on, and the kernel that stores its parts in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from runtime.baselines.scratch import scratch
from runtime.baselines.triton_kernels.tiles import Cut


@triton.jit
def project(
    w_ptr,
    x_ptr,
    rows,
    rows_ok,
    tokens,
    tokens_ok,
    k_start,
    K: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
    EVEN: tl.constexpr,
):
    """float32 [BLOCK_N, BLOCK_M]: weight ``rows`` times ``tokens`` of x over K_SPLIT elements of K.

    Weights are the wide side of the tensor-core tile; they pass once and are marked to leave the cache first.
    """
    wide = rows.to(tl.int64)[:, None] * K
    if DOT:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k0 in tl.range(0, K_SPLIT, BLOCK_K, num_stages=STAGES):
        k = k_start + k0 + tl.arange(0, BLOCK_K)
        k_ok = k < K
        if EVEN:
            w = tl.load(w_ptr + wide + k[None, :], eviction_policy="evict_first")
        else:
            w = tl.load(
                w_ptr + wide + k[None, :],
                mask=rows_ok[:, None] & k_ok[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
        if DOT:
            x = tl.load(x_ptr + tokens[None, :] * K + k[:, None], mask=tokens_ok[None, :] & k_ok[:, None], other=0.0)
            acc = tl.dot(w, x, acc, input_precision="ieee")
        else:
            x = tl.load(x_ptr + k, mask=k_ok, other=0.0)
            acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    if DOT:
        return acc
    else:
        return tl.sum(acc, axis=1)[:, None]


@triton.jit
def _store_parts(
    w_ptr,
    x_ptr,
    parts_ptr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    K_SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
    EVEN: tl.constexpr,
):
    split = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    y = project(
        w_ptr, x_ptr, rows, rows < N, tokens, tokens < M, split * K_SPLIT,
        K, K_SPLIT, BLOCK_N, BLOCK_M, BLOCK_K, STAGES, DOT, EVEN,
    )  # fmt: skip
    at = parts_ptr + (split * M + tokens[None, :]) * N + rows[:, None]
    tl.store(at, y, mask=(rows < N)[:, None] & (tokens < M)[None, :])


@triton.jit
def sum_parts(parts_ptr, offsets, ok, STRIDE: tl.constexpr, PARTS: tl.constexpr):
    """float32 sum of the parts at ``offsets`` of each, in order, so that it is the same every time."""
    total = tl.load(parts_ptr + offsets, mask=ok, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts_ptr + part * STRIDE + offsets, mask=ok, other=0.0)
    return total


def parts_of(weight: torch.Tensor, x: torch.Tensor, how: Cut) -> tuple[torch.Tensor, Callable[[], None]]:
    """Scratch for x @ weight^T, float32 [splits, tokens, rows], and the call that fills it."""
    (n, k), m = weight.shape, x.shape[0]
    parts = scratch("parts", (how.grid[1], m, n), torch.float32, x.device)
    constants = constants_of(how, k)

    def call() -> None:
        _store_parts[how.grid](weight, x, parts, M=m, N=n, **constants)

    return parts, call


def constants_of(how: Cut, k: int) -> dict[str, int | bool]:
    """The constants ``project`` takes, and the launch options."""
    tiles = how.tiles
    return {
        "K": k,
        "K_SPLIT": how.k_split,
        "BLOCK_N": tiles.rows,
        "BLOCK_M": how.tokens,
        "BLOCK_K": tiles.depth,
        "STAGES": tiles.stages,
        "DOT": how.dot,
        "EVEN": how.even,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
