"""LayerNorm fused into the encoder's QKV product: every program normalises the rows of its tile as it loads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import multiprocessors, power_of_2

_TOKENS = 64
_DEPTH_BYTES = 128


@triton.jit
def _qkv(
    x_ptr,
    gamma_ptr,
    beta_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens_ok = (tokens < M)[:, None]
    columns_ok = (columns < N)[None, :]
    x_row = x_ptr + tokens.to(tl.int64)[:, None] * K
    mean = tl.zeros((BLOCK_M,), tl.float32)
    r = tl.zeros((BLOCK_M,), tl.float32)
    if HAS_NORM:
        # Two passes: the mean of squares minus the squared mean loses the variance of rows far from zero.
        for k0 in tl.range(0, K, BLOCK_K):
            k = k0 + tl.arange(0, BLOCK_K)
            x = tl.load(x_row + k[None, :], mask=tokens_ok & (k < K)[None, :], other=0.0)
            mean += tl.sum(x.to(tl.float32), axis=1)
        mean = mean / K
        for k0 in tl.range(0, K, BLOCK_K):
            k = k0 + tl.arange(0, BLOCK_K)
            x = tl.load(x_row + k[None, :], mask=tokens_ok & (k < K)[None, :], other=0.0)
            centred = tl.where((k < K)[None, :], x.to(tl.float32) - mean[:, None], 0.0)
            r += tl.sum(centred * centred, axis=1)
        r = 1.0 / tl.sqrt(r / K + eps)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = k0 + tl.arange(0, BLOCK_K)
        k_ok = k < K
        w = tl.load(w_ptr + columns.to(tl.int64)[None, :] * K + k[:, None], mask=k_ok[:, None] & columns_ok, other=0.0)
        h = tl.load(x_row + k[None, :], mask=tokens_ok & k_ok[None, :], other=0.0)
        if HAS_NORM:
            gamma = tl.load(gamma_ptr + k, mask=k_ok, other=0.0).to(tl.float32)
            beta = tl.load(beta_ptr + k, mask=k_ok, other=0.0).to(tl.float32)
            normed = (h.to(tl.float32) - mean[:, None]) * r[:, None] * gamma[None, :] + beta[None, :]
            h = normed.to(h.dtype)
        acc = tl.dot(h, w, acc, input_precision="ieee")
    bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    at = out_ptr + tokens.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(at, (acc + bias[None, :]).to(out_ptr.dtype.element_ty), mask=tokens_ok & columns_ok)


def encoder_qkv(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """One launch."""
    x, w_qkv, b_qkv, out = (need(tensors, n) for n in ("x", "w_qkv", "b_qkv", "qkv"))
    has_norm = bool(dims["has_pre_norm"])
    gamma, beta = (need(tensors, n) if has_norm else x for n in ("ln_weight", "ln_bias"))
    (m, k), n = x.shape, w_qkv.shape[0]
    block_m = max(16, min(_TOKENS, power_of_2(m)))
    block_n = 128
    while block_n > 16 and -(-n // block_n) * -(-m // block_m) < multiprocessors(x.device):
        block_n //= 2
    grid = (-(-n // block_n), -(-m // block_m))

    def call() -> None:
        _qkv[grid](
            x,
            gamma,
            beta,
            w_qkv,
            b_qkv,
            out,
            scalars["eps"],
            M=m,
            N=n,
            K=k,
            HAS_NORM=has_norm,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=_DEPTH_BYTES // x.element_size(),
            STAGES=4,
            num_warps=4,
            num_stages=4,
        )

    return call


IMPLEMENTATIONS = {"encoder_qkv": encoder_qkv}
