"""A step's inputs as they would be in use, for timing and checking kernels before the first request.

Steps are timed on padding at their peril: attention over one token says nothing about attention over a thousand. A
rehearsal fills the metadata as if every row were a sequence of ``context`` tokens with blocks of its own, and the
buffers and those blocks with noise. While requests run it is refused; prefixes that were cached in those blocks are
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runtime.kv.blocks import DUMMY_BLOCK
from runtime.kv.pool import KVPool
from runtime.models.step import StepBuffers

_NOISE = ("residual", "x", "q", "attention", "projected", "activated")
# Besides the noise: what the rehearsal sets, and what the step computes from it.
_WRITTEN = (
    "positions",
    "slot_mapping",
    "seq_lens",
    "request_slots",
    "input_ids",
    "out_ids",
    "out_max",
    "last_tokens",
)


@contextmanager
def rehearsal(buffers: StepBuffers, pool: KVPool, context: int, seed: int = 0) -> Iterator[int]:
    """Fill ``buffers`` (a bucket's slice) for sequences of ``context`` tokens, fewer where the pool has no room for
    that many; gives their length. Everything is zero again afterwards. Raises ValueError when the pool has fewer blocks
    than there are sequences, for each needs one of its own, and BlocksHeldError while requests run."""
    rows = buffers.seq_lens.shape[0]
    if rows > pool.num_blocks - 1:
        raise ValueError(f"{rows} sequences cannot be rehearsed with {pool.num_blocks - 1} blocks; raise kv_blocks")
    room = min((pool.num_blocks - 1) // rows, buffers.block_table.shape[1])
    length = max(1, min(context, room * pool.block_size))
    blocks = -(-length // pool.block_size)
    pool.before_overwriting(range(1, 1 + rows * blocks))
    device = buffers.seq_lens.device
    noise = torch.Generator(device=device).manual_seed(seed)
    table = torch.arange(1, 1 + rows * blocks, device=device, dtype=torch.int32)
    order = torch.randperm(rows * blocks, generator=noise, device=device)
    buffers.block_table[:, :blocks] = table[order].view(rows, blocks)
    buffers.seq_lens.fill_(length)
    buffers.positions[:rows] = length - 1
    last = buffers.block_table[:, blocks - 1]
    buffers.slot_mapping[:rows] = last * pool.block_size + (length - 1) % pool.block_size
    buffers.request_slots.copy_(torch.arange(rows, device=device))
    for name in _NOISE:
        getattr(buffers, name).normal_(generator=noise)
    for layer in range(pool.storage.shape[0]):
        for cache in (pool.keys(layer), pool.values(layer)):
            cache[1 : 1 + rows * blocks].normal_(generator=noise)
    try:
        yield length
    finally:
        for name in (*_NOISE, *_WRITTEN):
            getattr(buffers, name).zero_()
        buffers.block_table.fill_(DUMMY_BLOCK)
        pool.storage[:, :, : 1 + rows * blocks].zero_()
