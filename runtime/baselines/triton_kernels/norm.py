"""Residual add and RMSNorm: a program a row, the row in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import power_of_2


@triton.jit
def normalise(s, gamma, eps, H: tl.constexpr):
    """round_T(round_T(s * r) * gamma) of one row of the storage type, padded with zeros."""
    wide = s.to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / H + eps)
    return ((wide * r).to(s.dtype).to(tl.float32) * gamma.to(tl.float32)).to(s.dtype)


@triton.jit
def _residual_rmsnorm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * H
    i = tl.arange(0, BLOCK)
    ok = i < H
    gamma = tl.load(weight_ptr + i, mask=ok, other=0.0)  # before the sum: its latency hides behind the row's
    s = tl.load(x_ptr + row + i, mask=ok, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row + i, mask=ok, other=0.0)
        s = (s.to(tl.float32) + residual.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptr + row + i, s, mask=ok)
    tl.store(out_ptr + row + i, normalise(s, gamma, eps, H), mask=ok)


def residual_rmsnorm(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """One launch."""
    x, weight, out = (need(tensors, n) for n in ("x", "weight", "out"))
    has_residual = bool(dims["has_residual"])
    residual = need(tensors, "residual") if has_residual else x
    rows, width = x.shape

    def call() -> None:
        _residual_rmsnorm[(rows,)](
            x,
            residual,
            weight,
            out,
            scalars["eps"],
            H=width,
            BLOCK=power_of_2(width),
            HAS_RESIDUAL=has_residual,
            num_warps=warps_for(width),
        )

    return call


def warps_for(width: int) -> int:
    """Eight elements a thread where that is four warps or more; sixteen warps at most, beyond 8192 thirty-two."""
    return max(4, min(16 if width <= 8192 else 32, power_of_2(width) // 256))


IMPLEMENTATIONS = {"residual_rmsnorm": residual_rmsnorm}
