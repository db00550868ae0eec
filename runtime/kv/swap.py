"""Host memory that preempted sequences are copied to, and the copies.

All copies run on the stream the model runs on: a copy out waits for the step that wrote the blocks, and a step waits
for the copy in that fills its blocks, without either side being told.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.kv.pool import KVPool


class SwapSpace:
    """``num_blocks`` blocks of host memory, pinned where the pool is on a GPU."""

    def __init__(self, pool: KVPool, num_blocks: int) -> None:
        layers, two, _, *rest = pool.storage.shape
        on_gpu = pool.storage.device.type == "cuda"
        self._pool = pool
        # Block first, so that one block is one contiguous piece of host memory.
        self._storage = torch.empty(
            (num_blocks, layers, two, *rest), dtype=pool.storage.dtype, pin_memory=on_gpu and num_blocks > 0
        )

    def copy_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy device blocks to host blocks; ``pairs`` are (device, host)."""
        for device, host in pairs:
            self._storage[host].copy_(self._pool.storage[:, :, device], non_blocking=True)

    def copy_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy host blocks back to device blocks; ``pairs`` are (device, host)."""
        for device, host in pairs:
            self._pool.storage[:, :, device].copy_(self._storage[host], non_blocking=True)
