"""Does an implementation do at this site what the library does? A last look before it may run, not a judgement.

Admission was the validator's, with float64 truths; here two results in the storage type are compared at the very dims
and buffers of the model, so that a kernel that is wrong for them never serves a token.
"""

from __future__ import annotations

import torch

from runtime.sites import Implementation, SiteCall

# Two right results differ by a few roundings of the storage type, relative to the tensor's own size.
ALLOWED = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-14}
_WRITTEN = {
    "attention_prelude": ("q_out", "k_cache", "v_cache"),
    "paged_decode_attention": ("out",),
    "o_proj_residual_rmsnorm": ("residual", "out"),
    "gated_mlp_up": ("out",),
    "gated_mlp_down": ("residual",),
    "residual_rmsnorm": ("residual", "out"),
    "rope": ("q", "k"),
    "kv_append": ("k_cache", "v_cache"),
    "lm_head_argmax": ("out_ids", "out_max"),
}


_CACHES = ("k_cache", "v_cache")


def disagreement(call: SiteCall, candidate: Implementation, library: Implementation) -> str | None:
    """What ``candidate`` does differently at ``call`` from ``library``; None when they agree. Restores all tensors.

    May raise whatever the candidate raises.
    """
    names = [n for n in _WRITTEN[call.site.operation] if call.tensors[n] is not None]
    before = {name: _read(call, name) for name in names}
    expected = _results(call, library, before)
    found = _results(call, candidate, before)
    for name, value in before.items():
        _write(call, name, value)
    problems = (_differ(name, found[name], expected[name]) for name in names)
    return next((p for p in problems if p is not None), None)


def _results(
    call: SiteCall, implementation: Implementation, before: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    for name, value in before.items():
        _write(call, name, value)
    implementation.bind(call)()
    return {name: _read(call, name) for name in before}


def _read(call: SiteCall, name: str) -> torch.Tensor:
    """A copy of what the call may change: of a cache only the slots it writes, for a cache fills the device."""
    if name in _CACHES:
        return call.tensor(name).flatten(0, 1)[call.tensor("slot_mapping")]
    return call.tensor(name).clone()


def _write(call: SiteCall, name: str, value: torch.Tensor) -> None:
    if name in _CACHES:
        call.tensor(name).flatten(0, 1)[call.tensor("slot_mapping")] = value
    else:
        call.tensor(name).copy_(value)


def _differ(name: str, found: torch.Tensor, expected: torch.Tensor) -> str | None:
    if not found.dtype.is_floating_point:
        # Near ties may fall either way; then the maximum, which is compared too, is the same.
        return None
    allowed = ALLOWED[expected.dtype]
    wide, truth = found.float(), expected.float()
    if not torch.equal(wide.isfinite(), truth.isfinite()):
        return f"{name}: finite where the library is not, or the reverse"
    wide, truth = wide.nan_to_num(), truth.nan_to_num()
    error = (wide - truth).norm() / truth.norm().clamp(min=1e-30)
    if error > allowed:
        return f"{name}: differs from the library by {error:.2e} of its size, {allowed:.2e} is allowed"
    return None
