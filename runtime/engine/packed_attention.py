"""Attention of all prompts of a step in one call: torch's flash attention over sequences laid side by side.

The operator is torch's own and has no public name in every version, so it is tried once a process on a small case
with an answer that is computed the long way; where it is missing or wrong, prompts are attended one by one.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from runtime.sites import PackedSegments, SiteCall

_FLASH_TYPES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256


def can_pack(call: SiteCall) -> bool:
    """Whether the packed way serves ``call`` on its device."""
    q, keys = call.tensor("q"), call.tensor("k_cache")
    if call.packed is None or q.device.type != "cuda" or q.dtype not in _FLASH_TYPES or q.shape[2] > _WIDEST_HEAD:
        return False
    return flash_is_right(q.dtype, q.shape[1], keys.shape[2], q.shape[2], call.dims["sliding_window"], q.device)


def attend_packed(call: SiteCall, packed: PackedSegments) -> None:
    """``prefill_attention`` of every segment; the prompts' rows follow the decode rows."""
    keys, values = (call.tensor(name).flatten(0, 1).index_select(0, packed.slots) for name in ("k_cache", "v_cache"))
    first = call.segments[0].row
    rows = call.segments[-1].row + call.segments[-1].length
    attended = _flash(call.tensor("q")[first:rows], keys, values, packed, call.scalars["scale"], call.dims)
    call.tensor("out")[first:rows] = attended


def _flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    packed: PackedSegments,
    scale: float,
    dims: dict[str, int],
) -> torch.Tensor:
    window = dims["sliding_window"]
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(
        q,
        keys,
        values,
        packed.row_starts,
        packed.slot_starts,
        packed.longest_rows,
        packed.longest_sequence,
        0.0,  # dropout
        True,  # causal, aligned to the last row and token of a segment
        False,
        scale=scale,
        window_size_left=window - 1 if window else -1,
        window_size_right=0 if window else -1,
    )[0]
    return out


@lru_cache(maxsize=64)
def flash_is_right(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, window: int, device: torch.device
) -> bool:
    """Whether the operator gives what it should for a whole prompt beside the end of a longer one."""
    noise = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=noise)

    lengths = ((19, 19), (6, 41))
    q, k, v = draw(25, heads, head_dim), draw(60, kv_heads, head_dim), draw(60, kv_heads, head_dim)
    window = min(window, 7)
    row_starts, slot_starts = (torch.tensor(s, dtype=torch.int32, device=device) for s in ([0, 19, 25], [0, 19, 60]))
    packed = PackedSegments(torch.empty(0), row_starts, slot_starts, longest_rows=19, longest_sequence=41)
    try:
        found = _flash(q, k, v, packed, 0.2, {"sliding_window": window})
        row, token, expected = 0, 0, []
        for rows, tokens in lengths:
            part = slice(token, token + tokens)
            expected.append(_plain(q[row : row + rows], k[part], v[part], 0.2, window))
            row, token = row + rows, token + tokens
        wide = torch.cat(expected)
        return bool((found.float() - wide).norm() <= 0.02 * wide.norm())
    except (RuntimeError, TypeError, AttributeError, IndexError):
        return False


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """The definition, in float32: query rows are the last of the tokens."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), wide_k) * scale
    query = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None]
    key = torch.arange(len(k), device=q.device)[None, :]
    seen = key <= query if not window else (key <= query) & (key > query - window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(dim=-1), wide_v)
