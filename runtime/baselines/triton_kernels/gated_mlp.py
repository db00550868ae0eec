"""Both halves of a gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.projection import constants_of, parts_of, project, sum_parts
from runtime.baselines.triton_kernels.tiles import Tiles, cut

_ADD_BLOCK = 1024


@triton.jit
def _up(
    w_ptr,
    x_ptr,
    out_ptr,
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
    # Gate and up rows alternate, so that one product gives both and a pair lies side by side.
    i = tl.arange(0, 2 * BLOCK_N)
    pair = tl.program_id(0) * BLOCK_N + i // 2
    tokens = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    y = project(
        w_ptr, x_ptr, pair + (i % 2) * N, pair < N, tokens, tokens < M, 0,
        K, K_SPLIT, 2 * BLOCK_N, BLOCK_M, BLOCK_K, STAGES, DOT, EVEN,
    )  # fmt: skip
    gate, up = tl.split(tl.permute(tl.reshape(y, (BLOCK_N, 2, BLOCK_M)), (0, 2, 1)))
    out = gate / (1.0 + tl.exp(-gate)) * up
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ok = (columns < N)[:, None] & (tokens < M)[None, :]
    tl.store(out_ptr + tokens[None, :] * N + columns[:, None], out.to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _down(
    w_ptr,
    x_ptr,
    residual_ptr,
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
    ok = (rows < N)[:, None] & (tokens < M)[None, :]
    at = residual_ptr + tokens[None, :] * N + rows[:, None]
    residual = tl.load(at, mask=ok, other=0.0)
    y = project(
        w_ptr, x_ptr, rows, rows < N, tokens, tokens < M, 0,
        K, K_SPLIT, BLOCK_N, BLOCK_M, BLOCK_K, STAGES, DOT, EVEN,
    )  # fmt: skip
    total = y.to(residual.dtype).to(tl.float32) + residual.to(tl.float32)
    tl.store(at, total.to(residual.dtype), mask=ok)


@triton.jit
def _add_parts(parts_ptr, residual_ptr, SIZE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < SIZE
    residual = tl.load(residual_ptr + i, mask=ok, other=0.0)
    y = sum_parts(parts_ptr, i, ok, SIZE, PARTS)
    total = y.to(residual.dtype).to(tl.float32) + residual.to(tl.float32)
    tl.store(residual_ptr + i, total.to(residual.dtype), mask=ok)


def gated_mlp_up(
    _dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float], tiles: Tiles | None = None
) -> Callable[[], None]:
    """One launch: both projections, SiLU and the product."""
    x, weight, out = (need(tensors, n) for n in ("x", "w_gate_up", "out"))
    m, n = out.shape
    how = cut("gated_mlp_up", n, x.shape[1], m, x, tiles=tiles)
    constants = constants_of(how, x.shape[1])

    def call() -> None:
        _up[how.grid](weight, x, out, M=m, N=n, **constants)

    return call


def gated_mlp_down(
    _dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float], tiles: Tiles | None = None
) -> Callable[[], None]:
    """One launch; two where K is split over programs to fill the device."""
    x, weight, residual = (need(tensors, n) for n in ("x", "w_down", "residual"))
    how = cut("gated_mlp_down", weight.shape[0], weight.shape[1], x.shape[0], x, may_split=True, tiles=tiles)
    if how.grid[1] == 1:
        return _down_at_once(x, weight, residual, constants_of(how, weight.shape[1]), how.grid)
    parts, fill = parts_of(weight, x, how)
    size = residual.numel()

    def call() -> None:
        fill()
        _add_parts[(-(-size // _ADD_BLOCK),)](parts, residual, SIZE=size, PARTS=how.grid[1], BLOCK=_ADD_BLOCK)

    return call


def _down_at_once(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    constants: Mapping[str, int | bool],
    grid: tuple[int, int, int],
) -> Callable[[], None]:
    m, n = residual.shape

    def call() -> None:
        _down[grid](weight, x, residual, M=m, N=n, **constants)

    return call


IMPLEMENTATIONS = {"gated_mlp_up": gated_mlp_up, "gated_mlp_down": gated_mlp_down}
