"""The vocabulary projection of the library path: float32 sums and float32 logits, whatever the storage type."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from runtime.sites import Bound, SiteCall

# Rows of the projection widened at a time on a CPU: 2048 x 4096 float32 values stay in the last-level cache.
_CPU_CHUNK = 2048


def lm_head_argmax(call: SiteCall) -> Bound:
    """``lm_head_argmax``: lowest index of the largest float32 logit of every row, and that logit."""
    x, w = call.tensor("x"), call.tensor("w")
    out_ids, out_max = call.tensor("out_ids"), call.tensor("out_max")
    narrow_cpu = x.device.type == "cpu" and x.dtype != torch.float32

    def dense() -> None:
        best, ids = wide_logits(x, w).max(dim=-1)
        out_max.copy_(best)
        out_ids.copy_(ids)

    def screened() -> None:
        # Rounding is monotone, so the largest float32 logit rounds to the largest rounded one: only the rows of w
        # that reach it are computed again, in float32. This reads w once, in its own type.
        rounded = linear(x, w)
        reaching = rounded == rounded.max(dim=-1, keepdim=True).values
        for row in range(x.shape[0]):
            ids = reaching[row].nonzero()[:, 0]
            if not len(ids):  # every logit is NaN
                out_max[row], out_ids[row] = float("nan"), 0
                continue
            logits = _wide(x[row : row + 1], w, ids)
            best = logits.argmax()
            out_max[row] = logits[best]
            out_ids[row] = ids[best]

    return screened if narrow_cpu else dense


def lm_head_logits(call: SiteCall) -> Bound:
    """All float32 logits of every row into ``out``."""
    x, w, out = call.tensor("x"), call.tensor("w"), call.tensor("out")

    def run() -> None:
        out.copy_(wide_logits(x, w))

    return run


def wide_logits(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` ``[rows, vocab_size]`` with float32 sums and no rounding to the storage type."""
    if x.dtype == torch.float32:
        return linear(x, w)
    if x.device.type == "cuda":
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    # One buffer for all chunks: fresh ones, with the small results between them, would leave the heap in pieces.
    wide, logits = x.float(), torch.empty(x.shape[0], w.shape[0])
    buffer = torch.empty(_CPU_CHUNK, w.shape[1])
    for start in range(0, w.shape[0], _CPU_CHUNK):
        rows = w[start : start + _CPU_CHUNK]
        logits[:, start : start + _CPU_CHUNK] = linear(wide, buffer[: rows.shape[0]].copy_(rows))
    return logits


def _wide(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Float32 logits of the vocabulary rows ``ids``, in their order."""
    wide = x.float()[0]
    return torch.cat([w[part].float() @ wide for part in torch.split(ids, _CPU_CHUNK)])
