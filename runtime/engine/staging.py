"""Writing a plan into the integers a step reads.

The host's copy is filled row by row and brought to the device in one transfer. Block tables are only appended to
while a row keeps serving the same life of the same request, which is what most decode steps do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runtime.engine.plan import Chunk, StepPlan
from runtime.kv.blocks import DUMMY_BLOCK
from runtime.models.step import Metadata, Sizes, allocate_metadata
from runtime.sites import PackedSegments, Segment


class Staging:
    """One host copy of a step's metadata. On a CPU it is the device's own memory and nothing is copied."""

    def __init__(self, sizes: Sizes, target: Metadata, block_size: int) -> None:
        self._target = target
        self._block_size = block_size
        self._padding_slot = sizes.sequences
        on_cpu = target.flat.device.type == "cpu"
        self._host = target if on_cpu else allocate_metadata(sizes, torch.device("cpu"), pin_memory=True)
        views = {name: getattr(self._host, name).numpy() for name in _FIELDS}
        self._input_ids, self._positions, self._slot_mapping = (views[n] for n in _FIELDS[:3])
        self._seq_lens, self._request_slots, self._sample_rows, self._block_table = (views[n] for n in _FIELDS[3:])
        self._block_table.fill(DUMMY_BLOCK)
        # Who each row of the block table serves, and how many of its entries are written.
        self._table_rows: list[tuple[tuple[int, int], int] | None] = [None] * sizes.sequences

    def write_decode(self, plan: StepPlan, bucket: int) -> None:
        """Fill ``bucket`` rows for a plan of decode chunks alone; rows past them become padding."""
        for row, chunk in enumerate(plan.decode):
            self._decode_row(row, chunk)
        self._pad(len(plan.decode), bucket)
        self._copy(bucket)

    def write_mixed(self, plan: StepPlan, attended: int = 0) -> tuple[Segment, ...]:
        """Fill exactly the plan's rows, in the plan's order; returns the segments of its prompts.

        Chunks that emit come first, so the rows to sample from are the first ``len(plan.emitting)`` of
        ``sample_rows``, and the sequences they belong to are the first as well. The first ``attended`` sequences may
        be given to decode attention, whatever they are: those that do not decode have one token of some block.
        """
        for row, chunk in enumerate(plan.decode):
            self._decode_row(row, chunk)
            self._sample_rows[row] = row
        segments: list[Segment] = []
        row = len(plan.decode)
        for sequence, chunk in enumerate(plan.prefill, start=len(plan.decode)):
            end, rows = chunk.start + chunk.length, slice(row, row + chunk.length)
            self._input_ids[rows] = chunk.request.tokens[chunk.start : end]
            positions = np.arange(chunk.start, end, dtype=np.int32)
            self._positions[rows] = positions
            self._write_table(sequence, chunk)
            self._slot_mapping[rows] = (
                self._block_table[sequence, positions // self._block_size] * self._block_size
                + positions % self._block_size
            )
            self._seq_lens[sequence] = 1
            self._request_slots[sequence] = chunk.slot
            self._sample_rows[sequence] = row + chunk.length - 1
            segments.append(Segment(row, chunk.length, end, sequence))
            row += chunk.length
        used = len(plan.decode) + len(segments)
        for sequence in range(used, attended):
            self._seq_lens[sequence], self._block_table[sequence, 0] = 1, DUMMY_BLOCK
            self._table_rows[sequence] = None
        self._copy(max(used, attended))
        return tuple(segments)

    def pack(self, segments: Sequence[Segment]) -> PackedSegments:
        """``segments`` of the step that was just written side by side, on the device."""
        device, size = self._target.flat.device, self._block_size
        token = [np.arange(s.seq_len, dtype=np.int32) for s in segments]
        slots = [
            self._block_table[s.table_row, t // size] * size + t % size for s, t in zip(segments, token, strict=True)
        ]
        counts = ([s.length for s in segments], [s.seq_len for s in segments])
        starts = [np.cumsum([0, *each], dtype=np.int32) for each in counts]
        flat = torch.from_numpy(np.concatenate([*starts, *slots]))
        if device.type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        count = len(segments) + 1
        return PackedSegments(
            slots=flat[2 * count :],
            row_starts=flat[:count],
            slot_starts=flat[count : 2 * count],
            longest_rows=max(s.length for s in segments),
            longest_sequence=max(s.seq_len for s in segments),
        )

    def _decode_row(self, row: int, chunk: Chunk) -> None:
        block, offset = divmod(chunk.start, self._block_size)
        self._positions[row] = chunk.start
        self._slot_mapping[row] = chunk.blocks[block] * self._block_size + offset
        self._seq_lens[row] = chunk.start + 1
        self._request_slots[row] = chunk.slot
        self._write_table(row, chunk)

    def _write_table(self, row: int, chunk: Chunk) -> None:
        blocks: Sequence[int] = chunk.blocks
        known = self._table_rows[row]
        written = known[1] if known is not None and known[0] == chunk.life else 0
        if written < len(blocks):
            self._block_table[row, written : len(blocks)] = blocks[written:]
        self._table_rows[row] = (chunk.life, len(blocks))

    def _pad(self, start: int, end: int) -> None:
        rows = slice(start, end)
        self._positions[rows] = 0
        self._slot_mapping[rows] = DUMMY_BLOCK * self._block_size
        self._seq_lens[rows] = 1
        self._request_slots[rows] = self._padding_slot
        self._block_table[rows, 0] = DUMMY_BLOCK
        for row in range(start, end):
            self._table_rows[row] = None

    def _copy(self, sequences: int) -> None:
        if self._host is not self._target:
            used = self._host.used(sequences)
            self._target.flat[:used].copy_(self._host.flat[:used], non_blocking=True)


_FIELDS = (
    "input_ids",
    "positions",
    "slot_mapping",
    "seq_lens",
    "request_slots",
    "sample_rows",
    "block_table",
)
