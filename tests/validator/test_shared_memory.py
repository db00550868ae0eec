"""What fills a GPU's shared memory: that it compiles, and which blocks it takes. The GPU's part is in test_on_gpu."""

from __future__ import annotations

import pytest
import torch

from kb.candidate import ResolvedLaunch
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from validator.worker.shared_memory import dirty_launches, dirtying_for

DEVICE = assumed_cuda_device("sm_90")


def launch(entry: str, threads: int, shared: int = 0) -> ResolvedLaunch:
    return ResolvedLaunch(entry=entry, grid=(7, 1, 1), block=(threads, 1, 1), shared_bytes=shared)


def test_all_of_the_memory_is_filled_and_then_blocks_like_the_kernels_own() -> None:
    launches = [launch("a", 128, 1000), launch("b", 64), launch("a", 128, 1000), launch("c", 32)]
    whole, *alike = dirty_launches(launches, {"a": 24, "b": 512, "c": 0}, DEVICE)
    assert whole.shared_bytes == DEVICE.shared_bytes
    assert [(one.block[0], one.shared_bytes) for one in alike] == [(128, 1024), (64, 512)]
    assert all(one.grid[0] >= DEVICE.num_sms for one in (whole, *alike))


def test_a_kernel_without_shared_memory_needs_nothing(images: CompileCache) -> None:
    assert dirtying_for([launch("a", 128)], {"a": 0}, DEVICE, images) is None


def test_the_filling_kernel_compiles_for_every_architecture(images: CompileCache) -> None:
    pytest.importorskip("cuda.core")
    for arch in ("sm_80", "sm_90", "sm_100"):
        made = dirtying_for([launch("a", 128, 64)], {}, assumed_cuda_device(arch), images)
        assert made is not None
        assert made.image.resources["dirty"].shared_bytes == 0


def test_what_it_writes_is_nan_in_every_type() -> None:
    word = torch.tensor([0x7FA57FA5], dtype=torch.int32)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert bool(word.view(dtype).isnan().all())
