"""Copies new keys and values into their slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import triton
import triton.language as tl

from runtime.baselines.torch_sequences import Tensors, need
from runtime.baselines.triton_kernels.tiles import power_of_2

_WIDEST = 2048


@triton.jit
def _append(k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < WIDTH
    from_at = row.to(tl.int64) * WIDTH + i
    k = tl.load(k_ptr + from_at, mask=ok)  # neither load waits for the slot
    v = tl.load(v_ptr + from_at, mask=ok)
    to_at = tl.load(slots_ptr + row).to(tl.int64) * WIDTH + i
    tl.store(k_cache_ptr + to_at, k, mask=ok)
    tl.store(v_cache_ptr + to_at, v, mask=ok)


def kv_append(_dims: Mapping[str, int], tensors: Tensors, _scalars: Mapping[str, float]) -> Callable[[], None]:
    """One launch."""
    k, v, k_cache, v_cache, slots = (need(tensors, n) for n in ("k", "v", "k_cache", "v_cache", "slot_mapping"))
    width = k.shape[1] * k.shape[2]
    block = min(_WIDEST, power_of_2(width))
    grid = (k.shape[0], -(-width // block))

    def call() -> None:
        _append[grid](k, v, k_cache, v_cache, slots, WIDTH=width, BLOCK=block, num_warps=4)

    return call


IMPLEMENTATIONS = {"kv_append": kv_append}
