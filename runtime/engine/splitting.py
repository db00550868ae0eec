"""Fused sites taken apart into smaller ones, so that kernels of the smaller contracts compete as well.

``attention_prelude`` becomes the projection, the head norms, ``rope`` and ``kv_append``; ``o_proj_residual_rmsnorm``
becomes the projection and ``residual_rmsnorm``. Where the parts meet, values are stored in the storage type, which
the fused contracts allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from runtime.baselines.scratch import scratch
from runtime.engine.library_ops import Library
from runtime.sites import Bound, Implementation, Site, SiteCall


class SplitPrelude:
    """``attention_prelude`` as ``project_heads`` (library), ``rope`` and ``kv_append``."""

    name, digest = "split", None

    def parts(self, call: SiteCall) -> Sequence[SiteCall]:
        """See ``Splitting.parts``."""
        dims, q = call.dims, call.tensor("q_out")
        shape = (q.shape[0], dims["num_kv_heads"], dims["head_dim"])
        k, v = (scratch(f"split_{name}", shape, q.dtype, q.device) for name in "kv")
        positions, slots = call.tensor("positions"), call.tensor("slot_mapping")
        table, caches = call.tensor("cos_sin"), {n: call.tensors[n] for n in ("k_cache", "v_cache")}
        inputs = {name: call.tensors[name] for name in ("x", "w_qkv", "b_qkv", "q_norm", "k_norm")}
        return (
            _part(call, "project_heads", (), {**inputs, "q": q, "k": k, "v": v}),
            _part(call, "rope", _ROPE_DIMS, {"q": q, "k": k, "cos_sin": table, "positions": positions}),
            _part(call, "kv_append", _APPEND_DIMS, {"k": k, "v": v, "slot_mapping": slots, **caches}),
        )

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        return _in_order(self.parts(call))


class SplitOutput:
    """``o_proj_residual_rmsnorm`` as ``linear`` (library) and ``residual_rmsnorm``."""

    name, digest = "split", None

    def parts(self, call: SiteCall) -> Sequence[SiteCall]:
        """See ``Splitting.parts``."""
        out = call.tensor("out")
        y = scratch("split_projected", tuple(out.shape), out.dtype, out.device)
        projection = {"x": call.tensors["attn"], "w": call.tensors["w_o"], "b": None, "out": y}
        norm = {"x": y, "residual": call.tensors["residual"], "weight": call.tensors["weight"], "out": out}
        return (
            _part(call, "linear", (), projection),
            _part(call, "residual_rmsnorm", ("hidden_size",), norm, has_residual=1),
        )

    def bind(self, call: SiteCall) -> Bound:
        """See ``Implementation.bind``."""
        return _in_order(self.parts(call))


SPLITTINGS: dict[str, Callable[[], Implementation]] = {
    "attention_prelude": SplitPrelude,
    "o_proj_residual_rmsnorm": SplitOutput,
}

_ROPE_DIMS = ("num_heads", "num_kv_heads", "head_dim", "rotary_dim", "rope_interleaved", "max_positions")
_APPEND_DIMS = ("num_kv_heads", "head_dim", "block_size", "num_blocks")


def _part(
    call: SiteCall, operation: str, dims: Sequence[str], tensors: dict[str, torch.Tensor | None], **more: int
) -> SiteCall:
    kept = {name: call.dims[name] for name in (*dims, "num_tokens")} | more
    site = Site(operation, tuple(sorted(kept.items())), call.site.storage)
    scalars = {} if operation in ("rope", "kv_append", "linear") else dict(call.scalars)
    return SiteCall(site, tensors, scalars, call.layer)


def _in_order(parts: Sequence[SiteCall]) -> Bound:
    bound = [Library().bind(part) for part in parts]

    def run() -> None:
        for part in bound:
            part()

    return run
