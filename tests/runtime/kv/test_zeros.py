"""Zeros are zeros, aligned, and on a CPU only what is used takes memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime.kv.zeros import zeros

CPU = torch.device("cpu")


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 4), (2, 3, 4)])
def test_they_are_zero_dense_and_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = zeros(shape, dtype, CPU)
    assert (made.shape, made.dtype) == (shape, dtype)
    assert made.is_contiguous()
    assert not made.any()
    assert made.numel() == 0 or made.data_ptr() % 64 == 0
    made.fill_(1)
    assert made.sum() == made.numel()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_pages_that_are_not_touched_take_no_memory() -> None:
    before = resident()
    made = zeros((256, 1 << 20), torch.uint8, CPU)
    assert resident() - before < 64 << 20
    made[:8].fill_(1)
    assert resident() - before < 96 << 20
