"""Float64 building blocks of the references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

# How a binding rounding point rounds, given the values (float64), the storage type and the number of the point in
# the order the reference reaches them. The gates replace it to learn what a kernel would return that left a point out,
# or that arrived on the other side of a rounding boundary.
Rounding = Callable[[torch.Tensor, torch.dtype, int], torch.Tensor]
_rounding: ContextVar[tuple[Rounding, list[int]] | None] = ContextVar("rounding", default=None)

# What references computed before their first rounding point, which is the same however the points round: by the
# tensors of the call (kept alive, so that no other gets their id) and a name.
_kept: ContextVar[dict[tuple[int, str], tuple[object, torch.Tensor]] | None] = ContextVar("kept", default=None)

# Rows of a weight converted to float64 at a time: 64 MiB of float64 at a width of 4096.
_ELEMENTS_AT_A_TIME = 1 << 23


def rounded(values: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    """A binding rounding point: ``values`` as the storage type holds them, float64."""
    if (replaced := _rounding.get()) is None:
        return values.to(storage).double()
    rounding, reached = replaced
    reached[0] += 1
    return rounding(values, storage, reached[0] - 1)


@contextmanager
def rounding_as(rounding: Rounding) -> Iterator[list[int]]:
    """Within, every binding point rounds as ``rounding`` says; the list's one element counts the points reached."""
    reached = [0]
    token = _rounding.set((rounding, reached))
    try:
        yield reached
    finally:
        _rounding.reset(token)


@contextmanager
def keeping() -> Iterator[None]:
    """Within, what ``kept`` was asked for is computed once for every call's tensors, which must not change."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept(tensors: object, name: str, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """``compute()``, or what it gave before for the same ``tensors`` and ``name``; nobody may write to the result."""
    if (known := _kept.get()) is None:
        return compute()
    key = id(tensors), name
    if key not in known:
        known[key] = tensors, compute()
    return known[key][1]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight^T + bias in float64. x: [rows, K], weight: [N, K] of any dtype; the result is [rows, N]."""
    x = x.double()
    step = max(1, _ELEMENTS_AT_A_TIME // weight.shape[1])
    y = torch.cat([x @ part.double().t() for part in torch.split(weight, step)], dim=1)
    return y if bias is None else y + bias.double()


def rms_norm(s: torch.Tensor, weight: torch.Tensor, eps: float, storage: torch.dtype) -> torch.Tensor:
    """round_T(s * r) * weight over the last dim, r = 1 / sqrt(mean(s * s) + eps); the product is not rounded."""
    r = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return rounded(s * r, storage) * weight.double()


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dim, float64."""
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * r * weight.double() + bias.double()


def rotate(
    heads: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, rotary_dim: int, interleaved: bool
) -> torch.Tensor:
    """The first ``rotary_dim`` elements of every head, rotated, float64.

    heads: [rows, heads, head_dim]; cos_sin: [max_positions, rotary_dim]; the result is [rows, heads, rotary_dim].
    """
    part = heads[..., :rotary_dim].double()
    cos, sin = cos_sin[positions.long()].double().unsqueeze(1).chunk(2, dim=-1)
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    a, b = part.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU of float64 ``x``, with all its digits: x * Phi(x), or with ``tanh`` its approximation, as x * sigmoid.

    One plus erf, or plus tanh, is exactly zero in the far negative tail, also in float64; a kernel that is right there
    must not be measured against that.
    """
    if approximate == "tanh":
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    tail: torch.Tensor = torch.special.erfc(-x / math.sqrt(2))
    return 0.5 * x * tail


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(scale * q k^T) v. q: [heads, rows, dim], k and v: [heads, tokens, dim]; all float64."""
    return torch.softmax(scale * (q @ k.transpose(-1, -2)), dim=-1) @ v
