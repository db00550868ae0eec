"""The library's products with fused kernels between them, on a GPU: for steps with prompts, and for wide decode steps.

A step with prompts has a shape of its own and runs once, so there nothing is chosen by measurement and nothing may
compile anew for a number of rows. Products and attention stay with the library. In decode steps of several rows, where
the library's products are hard to beat, the same is offered to the selection.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from runtime.engine.library_ops import Library
from runtime.sites import Bound, Implementation, Site, SiteCall


def prompt_operations(device: torch.device) -> Implementation:
    """What is fastest on ``device`` of what is installed."""
    return FusedLibrary() if device.type == "cuda" and has_triton() else Library()


def fused_candidates(site: Site) -> list[Implementation]:
    """What is worth trying at a decode site of a GPU besides kernels and baselines: one row has better ways."""
    wanted = site.operation in ("attention_prelude", "gated_mlp_up") and site.bucket > 1 and has_triton()
    return [FusedLibrary()] if wanted else []


def has_triton() -> bool:
    """Whether the fused kernels can be compiled."""
    return importlib.util.find_spec("triton") is not None


class FusedLibrary:
    """The library path with one Triton kernel for everything between two products."""

    name, digest = "library, fused", None

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
