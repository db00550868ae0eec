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
    """What ``candidate`` does differently at ``call`` from ``library``; None when they agree. Restores what the
    call may change.

    May raise whatever the candidate raises, with the tensors restored as well.
    """
    names = [n for n in _WRITTEN[call.site.operation] if call.tensors[n] is not None]
    before = {name: _read(call, name) for name in names}
    try:
        expected = _results(call, library, before)
        found = _results(call, candidate, before)
    finally:
        for name, value in before.items():
            _write(call, name, value)
    problems = [_differ(name, found[name], expected[name]) for name in names]
    if "out_ids" in found:
        problems.append(_picked(call, found["out_ids"], expected["out_max"]))
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
        return None  # near ties may fall either way: see _picked
    allowed = ALLOWED[expected.dtype]
    wide, truth = found.float(), expected.float()
    if not torch.equal(wide.isfinite(), truth.isfinite()):
        return f"{name}: finite where the library is not, or the reverse"
    wide, truth = wide.nan_to_num(), truth.nan_to_num()
    error = (wide - truth).norm() / truth.norm().clamp(min=1e-30)
    if not error <= allowed:  # sizes beyond float32 give NaN, which agrees with nothing
        return f"{name}: differs from the library by {error:.2e} of its size, {allowed:.2e} is allowed"
    return None


def _picked(call: SiteCall, ids: torch.Tensor, best: torch.Tensor) -> str | None:
    """Whether the logits of the tokens that were picked are the largest ones, ``best`` ``[rows]`` float32."""
    x, w = call.tensor("x"), call.tensor("w")
    if bool(((ids < 0) | (ids >= w.shape[0])).any()):
        return f"out_ids: a token outside the vocabulary of {w.shape[0]}"
    logits = (x.float() * w[ids.long()].float()).sum(dim=-1)
    short = float((best - logits).norm() / best.norm().clamp(min=1e-30))
    if not short <= ALLOWED[x.dtype]:
        return f"out_ids: the logits of these tokens differ from the largest by {short:.2e} of their size"
    return None
