"""The memory behind device blocks, and how much of it a device can spare."""

from __future__ import annotations

from pathlib import Path

import torch

from runtime.models.spec import DecoderSpec

# A host without a memory limit still serves other programs: take at most this share of what is available.
_CPU_SHARE = 0.25


class KVPool:
    """Keys and values of all layers in one allocation.

    ``storage``: ``[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]``; block 0 belongs to nobody.
    """

    def __init__(
        self, spec: DecoderSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (spec.num_layers, 2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        # Zeros, because padding rows read the dummy block and a NaN there would spread to their (unread) outputs;
        # on a CPU untouched pages stay unmapped, so blocks that are never used cost nothing.
        self.storage = torch.zeros(shape, dtype=dtype, device=device)

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

    CUDA: ``share`` of the device's memory less what is already in use. CPU: a quarter of what the system (or its
    control group) can still give.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(free - (1 - share) * total))
    return int(_available_host_bytes() * _CPU_SHARE)


def _available_host_bytes() -> int:
    available = [_meminfo_available()]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        if limit != "max":
            available.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return max(0, min(available))


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 4 * 2**30  # systems without /proc: a modest guess
