"""Modules that the tests compile, given by name as a user would."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Norm, a widening projection with GELU, and a narrowing one that adds to the stream."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Two layers that compute the same, and scores."""

    def __init__(self, hidden: int = 64, inner: int = 96) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden, inner) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(x * 0.5, dim=-1), x


class Normed(nn.Module):
    """An RMSNorm as Hugging Face models write it, after a residual add whose sum is returned too."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden) + 0.1 * torch.randn(hidden))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        wide = total.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(total.dtype), total


def stack() -> tuple[nn.Module, tuple[Any, ...]]:
    """The stack in bfloat16 with two sequences of four tokens."""
    torch.manual_seed(0)
    return Stack().bfloat16(), (torch.randn(2, 4, 64).bfloat16(),)


def normed() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The norm with a number of tokens that may change."""
    torch.manual_seed(0)
    args = (torch.randn(6, 64).bfloat16(), torch.randn(6, 64).bfloat16())
    rows = {0: ("tokens", 2, 64)}
    return Normed().bfloat16(), args, {}, {"x": rows, "residual": rows}


def nothing() -> int:
    """Not a module."""
    return 3


class Deciding(nn.Module):
    """Control flow that depends on data, around a layer that can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(64, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1e9:
            return x
        return self.layer(x) * 2


def deciding() -> tuple[nn.Module, tuple[Any, ...]]:
    """A module that cannot be captured whole."""
    torch.manual_seed(0)
    return Deciding().bfloat16(), (torch.randn(8, 64).bfloat16(),)


def failing() -> nn.Module:
    """Fails."""
    raise ValueError("no weights here")
