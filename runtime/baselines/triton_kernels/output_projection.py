"""Output projection into float32 parts, then residual add and RMSNorm a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.norm import normalise, warps_for
from runtime.baselines.triton_kernels.projection import parts_of, sum_parts
from runtime.baselines.triton_kernels.tiles import Tiles, cut, power_of_2


@triton.jit
def _add_norm(
    parts_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    M: tl.constexpr,
    H: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * H
    i = tl.arange(0, BLOCK)
    ok = i < H
    gamma = tl.load(weight_ptr + i, mask=ok, other=0.0)
    residual = tl.load(residual_ptr + row + i, mask=ok, other=0.0)
    y = sum_parts(parts_ptr, row + i, ok, M * H, PARTS)
    s = (y.to(residual.dtype).to(tl.float32) + residual.to(tl.float32)).to(residual.dtype)
    tl.store(residual_ptr + row + i, s, mask=ok)
    tl.store(out_ptr + row + i, normalise(s, gamma, eps, H), mask=ok)


def o_proj_residual_rmsnorm(
    _dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float], tiles: Tiles | None = None
) -> Callable[[], None]:
    """Two launches: the norm needs whole rows."""
    attn, w_o, residual, weight, out = (need(tensors, n) for n in ("attn", "w_o", "residual", "weight", "out"))
    rows, width = residual.shape
    how = cut("o_proj_residual_rmsnorm", w_o.shape[0], w_o.shape[1], rows, attn, may_split=True, tiles=tiles)
    parts, fill = parts_of(w_o, attn, how)

    def call() -> None:
        fill()
        _add_norm[(rows,)](
            parts,
            residual,
            weight,
            out,
            scalars["eps"],
            M=rows,
            H=width,
            PARTS=how.grid[1],
            BLOCK=power_of_2(width),
            num_warps=warps_for(width),
        )

    return call


IMPLEMENTATIONS = {"o_proj_residual_rmsnorm": o_proj_residual_rmsnorm}
