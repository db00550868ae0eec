"""Filling a GPU's shared memory before a call, so that a kernel that reads what it never wrote reads NaN.

Shared memory keeps what the last block left there, and on a device that nothing else uses this is often zero, or the
kernel's own sums of the call before. Either makes a kernel that forgot to clear it come out right in a trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.candidate import ResolvedLaunch
from runtime.compile_cache import CompileCache
from runtime.compile_cuda import compile_cuda
from runtime.device import DeviceInfo
from runtime.image import Image

ENTRY = "dirty"
# NaN as bfloat16 and as float16; two of them are NaN as float32, and no index of anything.
NAN_WORD = 0x7FA5
SOURCE = f"""
extern "C" __global__ void {ENTRY}() {{
  extern __shared__ volatile unsigned words[];
  unsigned bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
  for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) words[i] = 0x{NAN_WORD:04x}{NAN_WORD:04x}u;
}}
"""
# Blocks of the whole memory run one at a time on a multiprocessor; of small ones, as many as there is room for.
_LARGE_BLOCKS, _SMALL_BLOCKS = 2, 32
_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Dirtying:
    """The kernel and its launches, for a worker to load."""

    image: Image
    launches: tuple[ResolvedLaunch, ...]
    device: DeviceInfo


def dirtying_for(
    launches: Sequence[ResolvedLaunch], static_bytes: Mapping[str, int], device: DeviceInfo, cache: CompileCache
) -> Dirtying | None:
    """What to run before each call of ``launches``; None where none of them uses shared memory.

    ``static_bytes``: by entry, what its image declares.
    """
    wanted = dirty_launches(launches, static_bytes, device)
    return Dirtying(compile_cuda(SOURCE, device.arch, cache), wanted, device) if wanted else None


def dirty_launches(
    launches: Sequence[ResolvedLaunch], static_bytes: Mapping[str, int], device: DeviceInfo
) -> tuple[ResolvedLaunch, ...]:
    """First all there is, then blocks like each launch's own.

    The driver divides a multiprocessor's memory between cache and shared memory by what a kernel needs, and moves the
    border when the next one needs something else; only blocks of the same size leave their words where it looks.
    """
    alike: dict[tuple[tuple[int, int, int], int], ResolvedLaunch] = {}
    for launch in launches:
        shared = launch.shared_bytes + static_bytes.get(launch.entry, 0)
        if shared > 0:
            key = launch.block, shared
            alike[key] = _launch(device, _SMALL_BLOCKS, launch.block, min(shared, device.shared_bytes))
    if not alike:
        return ()
    return (_launch(device, _LARGE_BLOCKS, (_THREADS, 1, 1), device.shared_bytes), *alike.values())


def _launch(device: DeviceInfo, blocks: int, block: tuple[int, int, int], shared_bytes: int) -> ResolvedLaunch:
    """``blocks``: for each multiprocessor."""
    grid = (device.num_sms * blocks, 1, 1)
    return ResolvedLaunch(entry=ENTRY, grid=grid, block=block, shared_bytes=shared_bytes)
