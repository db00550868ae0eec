"""A kernel to stand in front of a dependent launch: it lets the launch start at once, and brings its inputs late.

In a decode step a kernel with ``programmatic_dependent`` begins while the kernel in front of it still computes what it
will read. Called alone it finds everything there, and a missing wait shows nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kb.candidate import ResolvedLaunch
from kb.contract import Contract, Early, Role
from runtime.compile_cache import CompileCache
from runtime.compile_cuda import compile_cuda
from runtime.device import DeviceInfo
from runtime.image import Image
from validator.arena import Layout, Slot
from validator.inputs import CallInputs
from validator.worker.shared_memory import NAN_WORD

ENTRY = "late"
# Long after the launch behind it has arrived and its early part has run, in cycles: some 0.2 ms.
_CYCLES = 400_000
_THREADS = 1024
# spans: how many to watch, how many to bring, then offset and bytes of each. What is watched is copied out first, as
# the early part has left it; only then does the rest arrive.
SOURCE = f"""
extern "C" __global__ void {ENTRY}(
    unsigned char* memory, const unsigned char* inputs, unsigned char* seen, const long long* spans) {{
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long begun = clock64();
  while (clock64() - begun < {_CYCLES}) {{
  }}
  for (long long i = 0; i < spans[0] + spans[1]; ++i) {{
    const bool watched = i < spans[0];
    volatile unsigned char* to = (watched ? seen : memory) + spans[2 + 2 * i];
    const volatile unsigned char* from = (watched ? memory : inputs) + spans[2 + 2 * i];
    for (long long b = threadIdx.x; b < spans[3 + 2 * i]; b += blockDim.x) to[b] = from[b];
    __syncthreads();
  }}
}}
"""
# What lies where something has not arrived, byte by byte.
POISON = tuple(NAN_WORD.to_bytes(2, "little"))

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LateInputs:
    """The kernel and its launch, for a worker to load; ``late`` and ``watched``: (offset, bytes) in the arena."""

    image: Image
    launches: tuple[ResolvedLaunch, ...]
    device: DeviceInfo
    late: tuple[Span, ...]
    watched: tuple[Span, ...]


def late_inputs(
    contract: Contract, layout: Layout, inputs: CallInputs, device: DeviceInfo, cache: CompileCache
) -> LateInputs:
    """What to put in front of a call on ``inputs`` in ``layout``: bring what may not be read early, watch what the call
    writes."""
    slots = {slot.name: slot for slot in layout.slots}
    late: list[Span] = []
    watched: list[Span] = []
    for tensor in contract.tensors:
        slot = slots.get(tensor.name)
        if slot is None:
            continue
        if tensor.role is not Role.IN:
            watched.append((slot.offset, slot.nbytes))
        if tensor.role is not Role.OUT:
            late += _late_spans(tensor.ready, slot, inputs)
    image = compile_cuda(SOURCE, device.arch, cache)
    launch = ResolvedLaunch(entry=ENTRY, grid=(1, 1, 1), block=(_THREADS, 1, 1))
    return LateInputs(image, (launch,), device, tuple(late), tuple(watched))


def starts_early(launches: Sequence[ResolvedLaunch]) -> bool:
    """Whether the first launch may begin while the kernel in front of it runs."""
    return bool(launches) and launches[0].programmatic_dependent


def newest_positions(inputs: CallInputs, block_size: int) -> list[int]:
    """For every sequence, the slot of its last token in a paged cache: block times ``block_size`` plus place in it.

    ``inputs`` holds ``block_table`` int32 [rows, columns] and ``seq_lens`` int32 [rows].
    """
    table, lengths = inputs.tensors["block_table"], inputs.tensors["seq_lens"]
    assert table is not None
    assert lengths is not None
    places = [(row, *divmod(length - 1, block_size)) for row, length in enumerate(lengths.tolist())]
    return [int(table[row, block]) * block_size + place for row, block, place in places]


def _late_spans(ready: Early | None, slot: Slot, inputs: CallInputs) -> list[Span]:
    if ready is Early.ALL:
        return []
    if ready is None:
        return [(slot.offset, slot.nbytes)]
    blocks, block_size = slot.shape[:2]
    each = slot.nbytes // (blocks * block_size)
    return [(slot.offset + position * each, each) for position in sorted(set(newest_positions(inputs, block_size)))]
