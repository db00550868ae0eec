"""Vocabulary projection and argmax: the best of every program's rows, then the best of the programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl

from runtime.baselines.scratch import scratch
from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.projection import constants_of, project
from runtime.baselines.triton_kernels.tiles import Tiles, cut

_REDUCE = 4096


@triton.jit
def _best_of_rows(
    w_ptr,
    x_ptr,
    best_ptr,
    ids_ptr,
    programs,
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
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    logits = project(
        w_ptr, x_ptr, rows, rows < N, tokens, tokens < M, 0,
        K, K_SPLIT, BLOCK_N, BLOCK_M, BLOCK_K, STAGES, DOT, EVEN,
    )  # fmt: skip
    logits = tl.where((rows < N)[:, None], logits, float("-inf"))
    best = tl.max(logits, axis=0)
    ids = tl.min(tl.where(logits == best[None, :], rows[:, None], N), axis=0)
    at = tokens * programs + tl.program_id(0)
    tl.store(best_ptr + at, best, mask=tokens < M)
    tl.store(ids_ptr + at, ids, mask=tokens < M)


@triton.jit
def _best_of_programs(best_ptr, ids_ptr, out_ids_ptr, out_max_ptr, programs, N: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    ids = tl.full((BLOCK,), N, tl.int32)
    for start in tl.range(0, programs, BLOCK):
        i = start + tl.arange(0, BLOCK)
        other = tl.load(best_ptr + token * programs + i, mask=i < programs, other=float("-inf"))
        other_ids = tl.load(ids_ptr + token * programs + i, mask=i < programs, other=N)
        better = (other > best) | ((other == best) & (other_ids < ids))
        best = tl.where(better, other, best)
        ids = tl.where(better, other_ids, ids)
    top = tl.max(best, axis=0)
    tl.store(out_ids_ptr + token, tl.min(tl.where(best == top, ids, N), axis=0))
    tl.store(out_max_ptr + token, top)


def lm_head_argmax(
    _dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float], tiles: Tiles | None = None
) -> Callable[[], None]:
    """Two launches; logits never leave the registers."""
    x, w, out_ids, out_max = (need(tensors, n) for n in ("x", "w", "out_ids", "out_max"))
    m, (n, k) = x.shape[0], w.shape
    how = cut("lm_head_argmax", n, k, m, x, tiles=tiles)
    programs, constants = how.grid[0], constants_of(how, k)
    best = scratch("best", (m, programs), torch.float32, x.device)
    ids = scratch("best_ids", (m, programs), torch.int32, x.device)

    def call() -> None:
        _best_of_rows[how.grid](w, x, best, ids, programs, M=m, N=n, **constants)
        _best_of_programs[(m,)](best, ids, out_ids, out_max, programs, N=n, BLOCK=_REDUCE, num_warps=8)

    return call


IMPLEMENTATIONS = {"lm_head_argmax": lm_head_argmax}
