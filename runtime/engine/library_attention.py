"""Attention of the library path: over the paged cache, for decode rows and for the rows of a prefill."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from runtime.engine.packed_attention import attend_packed, can_pack
from runtime.sites import Bound, Segment, SiteCall


def decode_attention(call: SiteCall) -> Bound:
    """``paged_decode_attention``: one query row a sequence."""
    return _decode_on_cpu(call) if call.tensor("q").device.type == "cpu" else _decode_dense(call)


def prefill_attention(call: SiteCall) -> Bound:
    """Several query rows a sequence, each seeing the tokens up to its own, the chunk's included.

    Query rows are the last of their sequence; keys and values are read back from the cache, where earlier chunks, a
    shared prefix and this chunk itself all are.
    """
    q, out, table = call.tensor("q"), call.tensor("out"), call.tensor("block_table")
    keys, values = call.tensor("k_cache"), call.tensor("v_cache")
    window, block_size, scale = call.dims["sliding_window"], call.dims["block_size"], call.scalars["scale"]

    def attend(segment: Segment) -> None:
        rows = slice(segment.row, segment.row + segment.length)
        start = segment.seq_len - segment.length  # position of the first query row
        first = max(0, start + 1 - window) if window else 0
        blocks = table[segment.table_row, first // block_size : -(-segment.seq_len // block_size)]
        cut = slice(first % block_size, segment.seq_len - first // block_size * block_size)
        k, v = _gathered(keys, values, blocks, cut)
        square = first == start == 0 and not window
        mask = None if square else _causal_mask(segment, start, first, window, q.device)
        attended = scaled_dot_product_attention(
            q[rows].transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=square,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[0],
        )
        out[rows] = attended[0].transpose(0, 1)

    def run() -> None:
        if call.packed is not None and can_pack(call):
            attend_packed(call, call.packed)
            return
        for segment in call.segments:
            attend(segment)

    return run


def _causal_mask(segment: Segment, start: int, first: int, window: int, device: torch.device) -> torch.Tensor:
    """``[length, tokens from first on]``, true where a query sees a key."""
    query = torch.arange(start, segment.seq_len, device=device)[:, None]
    key = torch.arange(first, segment.seq_len, device=device)[None, :]
    seen = key <= query
    return seen & (key > query - window) if window else seen


def _decode_on_cpu(call: SiteCall) -> Bound:
    """A sequence at a time over the tokens it has: lengths are free to read, and nothing is padded.

    The query heads of a group are the rows of one small product with the keys of their head, so nothing is repeated.
    """
    dims, scale = call.dims, call.scalars["scale"]
    kv_heads, block_size, window = dims["num_kv_heads"], dims["block_size"], dims["sliding_window"]
    q, out = call.tensor("q"), call.tensor("out")
    grouped_q, grouped_out = (t.view(t.shape[0], kv_heads, -1, dims["head_dim"]) for t in (q, out))
    keys, values = call.tensor("k_cache"), call.tensor("v_cache")
    table, seq_lens = call.tensor("block_table"), call.tensor("seq_lens")

    def run() -> None:
        for row, length in enumerate(seq_lens.tolist()):
            first = max(0, length - window) if window else 0
            blocks = table[row, first // block_size : -(-length // block_size)]
            cut = slice(first % block_size, length - first // block_size * block_size)
            k, v = _gathered(keys, values, blocks, cut)
            attended = scaled_dot_product_attention(grouped_q[row, None], k[None], v[None], scale=scale)
            grouped_out[row] = attended[0]

    return run


def _gathered(
    keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, cut: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[num_kv_heads, tokens, head_dim]`` of the tokens ``cut`` of ``blocks`` in order.

    On a CPU, blocks that follow each other in memory, as a lone sequence's do, are read where they are.
    """
    if blocks.device.type == "cpu":
        ids = blocks.tolist()
        if ids == list(range(ids[0], ids[0] + len(ids))):
            here = slice(ids[0], ids[-1] + 1)
            return (
                keys[here].flatten(0, 1)[cut].transpose(0, 1),
                values[here].flatten(0, 1)[cut].transpose(0, 1),
            )
    return (
        keys.index_select(0, blocks).flatten(0, 1)[cut].transpose(0, 1),
        values.index_select(0, blocks).flatten(0, 1)[cut].transpose(0, 1),
    )


def _decode_dense(call: SiteCall) -> Bound:
    """All rows at once over the whole block table, masked: no length reaches the host, so a graph may hold it.

    Entries past a sequence's end may be anything and are replaced by block 0 before they are followed.
    """
    dims, scale = call.dims, call.scalars["scale"]
    kv_heads, block_size, window = dims["num_kv_heads"], dims["block_size"], dims["sliding_window"]
    q, out = call.tensor("q"), call.tensor("out")
    keys, values = call.tensor("k_cache"), call.tensor("v_cache")
    table, seq_lens = call.tensor("block_table"), call.tensor("seq_lens")
    grouped_q = q.view(q.shape[0], kv_heads, -1, dims["head_dim"])
    token = torch.arange(table.shape[1] * block_size, device=q.device)[None, :]

    def run() -> None:
        lengths = seq_lens[:, None]
        seen = token < lengths
        if window:
            seen &= token >= lengths - window
        blocks = torch.where(token[:, ::block_size] < lengths, table, 0)
        k = keys[blocks].flatten(1, 2).transpose(1, 2)
        v = values[blocks].flatten(1, 2).transpose(1, 2)
        attended = scaled_dot_product_attention(grouped_q, k, v, attn_mask=seen[:, None, None, :], scale=scale)
        out.copy_(attended.flatten(1, 2))

    return run
