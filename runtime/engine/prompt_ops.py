"""The operations of a step with prompts in it: the library's products, with fused kernels between them on a GPU.

A step with prompts has a shape of its own and runs once, so nothing here is chosen by measurement and nothing may
compile anew for a number of rows. Products and attention stay with the library.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from runtime.engine.library_ops import Library
from runtime.sites import Bound, Implementation, SiteCall


def prompt_operations(device: torch.device) -> Implementation:
    """What is fastest on ``device`` of what is installed."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return FusedPrompts()
    return Library()


class FusedPrompts:
    """The library path with one Triton kernel for everything between two products."""

    name, digest = "fused prompts", None

    def __init__(self) -> None:
        self._library = Library()

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        fused = _FUSED.get(call.site.operation)
        return fused(call) if fused is not None else self._library.bind(call)


def _attention_prelude(call: SiteCall) -> Bound:
    from runtime.baselines.triton_kernels.prompts import finish_heads

    x, w, bias = call.tensor("x"), call.tensor("w_qkv"), call.tensors["b_qkv"]
    finish = finish_heads(call.dims, call.tensors, call.scalars)
    return lambda: finish(linear(x, w, bias))


def _residual_rmsnorm(call: SiteCall) -> Bound:
    from runtime.baselines.triton_kernels.norm import residual_rmsnorm

    return residual_rmsnorm(call.dims, call.tensors, call.scalars)


def _o_proj_residual_rmsnorm(call: SiteCall) -> Bound:
    from runtime.baselines.triton_kernels.norm import residual_rmsnorm

    attn, w = call.tensor("attn"), call.tensor("w_o")
    others = {name: call.tensors[name] for name in ("residual", "weight", "out")}

    def run() -> None:
        residual_rmsnorm({"has_residual": 1}, {"x": linear(attn, w), **others}, call.scalars)()

    return run


def _gated_mlp_up(call: SiteCall) -> Bound:
    from runtime.baselines.triton_kernels.prompts import gate

    x, w, out = call.tensor("x"), call.tensor("w_gate_up"), call.tensor("out")
    return lambda: gate(linear(x, w), out)


_FUSED: dict[str, Callable[[SiteCall], Bound]] = {
    "attention_prelude": _attention_prelude,
    "residual_rmsnorm": _residual_rmsnorm,
    "o_proj_residual_rmsnorm": _o_proj_residual_rmsnorm,
    "gated_mlp_up": _gated_mlp_up,
}
