"""The memory behind device blocks, and how much of it a device can spare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from runtime.kv.zeros import zeros
from runtime.models.spec import DecoderSpec

# A host without a memory limit still serves other programs: take at most this share of what is available.
_CPU_SHARE = 0.25


class KVPool:
    """Keys and values of all layers in one allocation.

    ``storage``: ``[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]``; block 0 belongs to nobody.
    ``before_overwriting`` is called with the blocks that somebody other than a step of requests is about to write: who
    hands blocks out sets it, to refuse or to forget what they hold.
    """

    def __init__(
        self, spec: DecoderSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.before_overwriting: Callable[[Sequence[int]], None] = lambda _blocks: None
        shape = (spec.num_layers, 2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        # Zeros, because padding rows read the dummy block and a NaN there would spread to their (unread) outputs;
        # on a CPU untouched pages stay unmapped, so blocks that are never used cost nothing.
        self.storage = zeros(shape, dtype, device)

    def keys(self, layer: int) -> torch.Tensor:
        """``[num_blocks, block_size, num_kv_heads, head_dim]``."""
        return self.storage[layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """``[num_blocks, block_size, num_kv_heads, head_dim]``."""
        return self.storage[layer, 1]


def affordable_blocks(spec: DecoderSpec, block_size: int, itemsize: int, free_bytes: int) -> int:
    """Blocks that fit into ``free_bytes``."""
    return free_bytes // (block_size * spec.kv_bytes_per_token(itemsize))


def spare_bytes(device: torch.device, share: float) -> int:
    """Bytes of ``device`` the pool may take now that the weights are loaded.

    CUDA: ``share`` of the device's memory less what is already in use. CPU: a quarter of what is free.
    """
    free = free_bytes(device)
    if device.type == "cuda":
        return max(0, int(free - (1 - share) * torch.cuda.mem_get_info(device)[1]))
    return int(free * _CPU_SHARE)


def free_bytes(device: torch.device) -> int:
    """Bytes that ``device`` can still give; for a CPU, what its system and its control group can."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return max(0, min(_meminfo_available(), _control_group_available()))


def _control_group_available() -> int:
    """Bytes the control group's limit leaves, cached files counted as free: the system drops them when asked."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return sys.maxsize if limit == "max" else int(limit) - used + int(stat["file"]) - int(stat["shmem"])
    except (OSError, ValueError, KeyError):
        return sys.maxsize


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 4 * 2**30  # systems without /proc: a modest guess
