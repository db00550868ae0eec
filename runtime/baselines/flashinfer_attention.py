"""FlashInfer's paged decode attention, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import flashinfer
import torch

from runtime.baselines.registry import Prepare, UnsupportedShapeError
from runtime.baselines.scratch import scratch
from runtime.baselines.torch_sequences import Tensors, need

# What its documentation asks for, for any shape.
_WORKSPACE_BYTES = 128 << 20
_HEAD_DIMS = (64, 128, 256)


def paged_decode_attention(
    dims: Mapping[str, int], tensors: Tensors, scalars: Mapping[str, float]
) -> Callable[[], None]:
    """Planned here, from the lengths and blocks as they are now: its planner runs on the host.

    So, unlike the other baselines, a prepared call does not follow a change of ``seq_lens`` or ``block_table``.
    """
    q, k_cache, v_cache, out = (need(tensors, n) for n in ("q", "k_cache", "v_cache", "out"))
    if q.dtype == torch.float32:
        raise UnsupportedShapeError("flashinfer has no float32 decode attention")
    if dims["head_dim"] not in _HEAD_DIMS:
        raise UnsupportedShapeError(f"flashinfer has no decode attention for head_dim {dims['head_dim']}")
    size = dims["block_size"]
    lengths = need(tensors, "seq_lens").cpu()
    blocks = -(-lengths // size)
    table = need(tensors, "block_table")
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    indptr[1:] = blocks.cumsum(0)
    indices = torch.cat([table[row, :count] for row, count in enumerate(blocks.tolist())])
    workspace = scratch("flashinfer", (_WORKSPACE_BYTES,), torch.uint8, q.device)
    # Its tensor-core path pays from four query heads a key head on.
    grouped = dims["num_heads"] // dims["num_kv_heads"] >= 4
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=grouped)
    wrapper.plan(
        indptr,
        indices,
        lengths - (blocks - 1) * size,
        dims["num_heads"],
        dims["num_kv_heads"],
        dims["head_dim"],
        size,
        window_left=dims["sliding_window"] - 1 if dims["sliding_window"] else -1,
        q_data_type=q.dtype,
        kv_data_type=k_cache.dtype,
        sm_scale=scalars["scale"],
    )
    return lambda: wrapper.run(q, (k_cache, v_cache), out=out)


IMPLEMENTATIONS: Mapping[str, Prepare] = {"paged_decode_attention": paged_decode_attention}
