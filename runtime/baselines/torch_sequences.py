"""Pieces the torch baselines share: each does its part with as few library calls as torch allows.

Where a contract makes a rounding point binding, a library call ends there: its result is stored in the storage type.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

Tensors = Mapping[str, torch.Tensor | None]


def need(tensors: Tensors, name: str) -> torch.Tensor:
    """The tensor called ``name``; the registry has checked that it is there."""
    tensor = tensors[name]
    assert tensor is not None
    return tensor


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """out = x @ weight^T + bias. x: [rows, K], weight: [N, K], out: [rows, N]."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def rms_norm_into(s: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """out = round(round(s * r) * weight): the library's norm without weight stores the first rounding."""
    torch.mul(functional.rms_norm(s, (s.shape[-1],), None, eps), weight, out=out)


class Rotation:
    """Rotates heads as contract rope says; the table rows of a step are gathered once for queries and keys."""

    def __init__(self, dims: Mapping[str, int], tensors: Tensors) -> None:
        self._half = dims["rotary_dim"] // 2
        self._interleaved = bool(dims["rope_interleaved"])
        self._table, self._positions = need(tensors, "cos_sin"), need(tensors, "positions")

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the step's positions, each float32 [rows, 1, rotary_dim / 2]."""
        found = self._table.index_select(0, self._positions).unsqueeze(1)
        return found[..., : self._half], found[..., self._half :]

    def rotate(self, heads: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor) -> None:
        """Write the rotated part of ``heads`` [rows, heads, head_dim] to ``out``, which may be the same tensor."""
        (a, b), (out_a, out_b) = self._pairs(heads), self._pairs(out)
        cos, sin = rows
        new_a = torch.mul(a, cos).addcmul_(b, sin, value=-1)
        new_b = torch.mul(b, cos).addcmul_(a, sin)
        out_a.copy_(new_a)
        out_b.copy_(new_b)

    def _pairs(self, heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._interleaved:
            return heads[..., 0 : 2 * self._half : 2], heads[..., 1 : 2 * self._half : 2]
        return heads[..., : self._half], heads[..., self._half : 2 * self._half]


def append(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write ``rows`` [num_tokens, heads, head_dim] to the ``slots`` (int64) of a paged cache."""
    cache.flatten(0, 1).index_copy_(0, slots, rows)
