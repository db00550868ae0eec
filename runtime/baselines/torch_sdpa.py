"""torch's scaled_dot_product_attention. Query heads that share keys are its rows, so that nothing is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import scaled_dot_product_attention

from runtime.baselines.registry import Prepare
from runtime.baselines.torch_sequences import Tensors, need


def paged_decode_attention(
    dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Gather the blocks, then attend: a sequence at a time on a CPU, all at once under a mask on a GPU."""
    q, out = need(tensors, "q"), need(tensors, "out")
    shape = (q.shape[0], dims["num_kv_heads"], -1, dims["head_dim"])
    attend = _gather_all if q.is_cuda else _gather_each
    return attend(dims, tensors, scalars["scale"], q.view(shape), out.view(shape))


def _gather_each(
    dims: Mapping[str, int], tensors: Tensors, scale: float, q: torch.Tensor, out: torch.Tensor
) -> Callable[[], None]:
    k_cache, v_cache, table, lengths = (need(tensors, n) for n in ("k_cache", "v_cache", "block_table", "seq_lens"))
    size, window = dims["block_size"], dims["sliding_window"]

    def call() -> None:
        for t, length in enumerate(lengths.tolist()):
            first = max(0, length - window) if window else 0
            skipped = first // size
            blocks = table[t, skipped : -(-length // size)]
            k, v = (
                cache.index_select(0, blocks).flatten(0, 1)[first - skipped * size : length - skipped * size]
                for cache in (k_cache, v_cache)
            )
            heads = scaled_dot_product_attention(q[t : t + 1], _by_head(k), _by_head(v), scale=scale)
            out[t].copy_(heads[0])

    return call


def _by_head(rows: torch.Tensor) -> torch.Tensor:
    return rows.transpose(0, 1).unsqueeze(0)


def _gather_all(
    dims: Mapping[str, int], tensors: Tensors, scale: float, q: torch.Tensor, out: torch.Tensor
) -> Callable[[], None]:
    """No host reads a length, so a graph replays with other lengths; ``context_len``, where given, bounds them."""
    k_cache, v_cache, table, lengths = (need(tensors, n) for n in ("k_cache", "v_cache", "block_table", "seq_lens"))
    size, window, rows = dims["block_size"], dims["sliding_window"], q.shape[0]
    columns = min(dims["max_blocks_per_seq"], -(-dims.get("context_len", 1 << 40) // size))
    token = torch.arange(columns * size, device=q.device)
    used = table[:, :columns]

    def call() -> None:
        blocks = used.clamp(0, k_cache.shape[0] - 1).view(-1)
        k, v = (c.index_select(0, blocks).view(rows, columns * size, *c.shape[2:]) for c in (k_cache, v_cache))
        counts = token < lengths[:, None]
        if window:
            counts &= token >= lengths[:, None] - window
        mask = counts[:, None, None, :].expand(-1, q.shape[1], q.shape[2], -1)
        heads = scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
        out.copy_(heads)

    return call


def encoder_attention(dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]) -> Callable[[], None]:
    """One call without a mask when every sequence is full; else padding is cleared, masked and zeroed.

    Whether all sequences are full is read once, here: the lengths of a prepared call may change only if some were
    short to begin with.
    """
    qkv, lengths, out = (need(tensors, n) for n in ("qkv", "seq_lens", "out"))
    scale, heads_last = scalars["scale"], out.transpose(1, 2)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    if bool((lengths == dims["seq_len"]).all()):

        def full() -> None:
            heads_last.copy_(scaled_dot_product_attention(q, k, v, scale=scale))

        return full
    token = torch.arange(dims["seq_len"], device=qkv.device)

    def call() -> None:
        real = token < lengths[:, None]
        # Padding may hold infinities: a masked score would be NaN, and so would zero times a value.
        clean = torch.where(real[:, :, None, None, None], qkv, 0)
        q, k, v = (clean[:, :, i].transpose(1, 2) for i in range(3))
        mask = real[:, None, None, :].expand(-1, q.shape[1], q.shape[2], -1)
        heads_last.copy_(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))
        out.masked_fill_(~real[:, :, None, None], 0)

    return call


IMPLEMENTATIONS: Mapping[str, Prepare] = {
    "paged_decode_attention": paged_decode_attention,
    "encoder_attention": encoder_attention,
}
