"""torch.compile over a whole contract: what its code generator makes of the pointwise parts.

Compiled once per shape and shared by all calls of it. CUDA graphs are left to the caller. The generator is told to keep
every rounding to a narrower type: by default it drops those inside a fused kernel, which a contract's binding rounding
points forbid.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch.nn import functional

from runtime.baselines.registry import Prepare
from runtime.baselines.torch_sequences import Tensors

Values = Mapping[str, float]
Function = Callable[..., None]
_COUNTER = itertools.count()


def residual_rmsnorm(values: Values) -> tuple[Function, tuple[str, ...]]:
    """The pointwise formula; everything fits one kernel."""
    eps = values["eps"]

    def norm(s: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        wide = s.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        out.copy_(normed.to(s.dtype) * weight)

    def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        s = x + residual
        residual.copy_(s)
        norm(s, weight, out)

    if values["has_residual"]:
        return add_norm, ("x", "residual", "weight", "out")
    return norm, ("x", "weight", "out")


def rope(values: Values) -> tuple[Function, tuple[str, ...]]:
    """Both tensors rotated from one gather of the table."""
    width, interleaved = int(values["rotary_dim"]), bool(values["rope_interleaved"])
    half = width // 2

    def turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        part = heads[..., :width].float()
        if interleaved:
            a, b = part[..., 0::2], part[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = part[..., :half], part[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def rotate(q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        rows = cos_sin[positions].unsqueeze(1)
        cos, sin = rows[..., :half], rows[..., half:]
        q[..., :width].copy_(turned(q, cos, sin))
        k[..., :width].copy_(turned(k, cos, sin))

    return rotate, ("q", "k", "cos_sin", "positions")


def encoder_qkv(values: Values) -> tuple[Function, tuple[str, ...]]:
    """LayerNorm and the projection."""
    eps = values["eps"]

    def plain(x: torch.Tensor, w_qkv: torch.Tensor, b_qkv: torch.Tensor, qkv: torch.Tensor) -> None:
        qkv.view(x.shape[0], -1).copy_(torch.addmm(b_qkv, x, w_qkv.t()))

    def normed(
        x: torch.Tensor,
        ln_weight: torch.Tensor,
        ln_bias: torch.Tensor,
        w_qkv: torch.Tensor,
        b_qkv: torch.Tensor,
        qkv: torch.Tensor,
    ) -> None:
        plain(functional.layer_norm(x, (x.shape[-1],), ln_weight, ln_bias, eps), w_qkv, b_qkv, qkv)

    if values["has_pre_norm"]:
        return normed, ("x", "ln_weight", "ln_bias", "w_qkv", "b_qkv", "qkv")
    return plain, ("x", "w_qkv", "b_qkv", "qkv")


def encoder_mlp(values: Values) -> tuple[Function, tuple[str, ...]]:
    """LayerNorm, GELU and the residual add around two library products."""
    eps, approximate = values["eps"], "tanh" if values["gelu_tanh"] else "none"
    projections = ("w_up", "b_up", "w_down", "b_down", "out")

    def mlp(
        h: torch.Tensor,
        x: torch.Tensor,
        w_up: torch.Tensor,
        b_up: torch.Tensor,
        w_down: torch.Tensor,
        b_down: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        up = functional.gelu(torch.addmm(b_up, h, w_up.t()), approximate=approximate)
        out.copy_(torch.addmm(b_down, up, w_down.t()) + x)

    def normed(x: torch.Tensor, ln_weight: torch.Tensor, ln_bias: torch.Tensor, *rest: torch.Tensor) -> None:
        mlp(functional.layer_norm(x, (x.shape[-1],), ln_weight, ln_bias, eps), x, *rest)

    if values["has_pre_norm"]:
        return normed, ("x", "ln_weight", "ln_bias", *projections)
    return mlp, ("x", "x", *projections)


def _prepared(make: Callable[[Values], tuple[Function, tuple[str, ...]]]) -> Prepare:
    def prepare(dims: Mapping[str, int], tensors: Tensors, scalars: Values) -> Callable[[], None]:
        function, names = _compiled(make, tuple(sorted(dims.items())), tuple(sorted(scalars.items())))
        arguments = [tensors[name] for name in names]
        # Compile on copies: the first call must not change a tensor that is updated in place.
        function(*(None if a is None else a.clone() for a in arguments))
        return lambda: function(*arguments)

    return prepare


@lru_cache(maxsize=256)
def _compiled(
    make: Callable[[Values], tuple[Function, tuple[str, ...]]],
    dims: tuple[tuple[str, int], ...],
    scalars: tuple[tuple[str, float], ...],
) -> tuple[Function, tuple[str, ...]]:
    function, names = make(dict(dims) | dict(scalars))
    # torch counts recompilations per code object and gives up after a few; every shape gets a code object of its own.
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_COUNTER)}")
    own = types.FunctionType(code, function.__globals__, closure=function.__closure__)
    options: dict[str, str | int | bool | Callable[..., object]] = {"emulate_precision_casts": True}
    return torch.compile(own, fullgraph=True, dynamic=False, options=options), names


IMPLEMENTATIONS: Mapping[str, Prepare] = {
    "residual_rmsnorm": _prepared(residual_rmsnorm),
    "rope": _prepared(rope),
    "encoder_qkv": _prepared(encoder_qkv),
    "encoder_mlp": _prepared(encoder_mlp),
}
