"""Sampling parameters where a recorded step finds them: one device table, rewritten and copied once a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.engine.request import SamplingParams
from runtime.engine.sampling import Needs, SamplingRows

_FLOATS = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
_INTS = ("top_k", "seed", "position")


class SamplingTable:
    """The rows of ``sequences`` requests, 32 bits a value, views of one allocation on ``device``."""

    def __init__(self, sequences: int, vocab_size: int, device: torch.device) -> None:
        shape = (len(_FLOATS) + len(_INTS), sequences)
        self._vocab_size = vocab_size
        self._table = torch.zeros(shape, dtype=torch.int32, device=device)
        on_gpu = device.type == "cuda"
        # Two on the host, because a copy may still be reading one while the next step is written.
        self._hosts = [torch.zeros(shape, dtype=torch.int32, pin_memory=True) for _ in range(2)] if on_gpu else []
        self._writes = 0

    def write(
        self, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int], padded_to: int
    ) -> SamplingRows:
        """Rows for these requests, and greedy rows after them up to ``padded_to``. The host does not wait."""
        host = self._hosts[self._writes % 2] if self._hosts else self._table
        self._writes += 1
        floats, ints = host[: len(_FLOATS)].view(torch.float32).numpy(), host[len(_FLOATS) :].numpy()
        used, vocab = len(params), self._vocab_size
        columns = (
            ([p.temperature for p in params], 0),
            ([p.top_p for p in params], 1),
            ([p.min_p for p in params], 0),
            ([p.repetition_penalty for p in params], 1),
            ([p.presence_penalty for p in params], 0),
            ([p.frequency_penalty for p in params], 0),
            ([min(p.top_k, vocab) or vocab for p in params], vocab),
            ([_fold(seed) for seed in seeds], 0),
            (positions, 0),
        )
        for row, (values, padding) in zip((*floats, *ints), columns, strict=True):
            row[:used], row[used:padded_to] = values, padding
        if self._hosts:
            self._table.copy_(host, non_blocking=True)
        return self.rows(padded_to, Needs.of(params))

    def rows(self, count: int, needs: Needs) -> SamplingRows:
        """The first ``count`` rows, whatever is written there when they are read."""
        floats, ints = self._table[: len(_FLOATS)].view(torch.float32), self._table[len(_FLOATS) :]
        views = {name: floats[i, :count] for i, name in enumerate(_FLOATS)}
        views |= {name: ints[i, :count] for i, name in enumerate(_INTS)}
        return SamplingRows(needs=needs, **views)


def sampling_rows(
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
    vocab_size: int,
    device: torch.device,
    padded_to: int | None = None,
) -> SamplingRows:
    """Rows in a table of their own."""
    count = padded_to or len(params)
    return SamplingTable(count, vocab_size, device).write(params, seeds, positions, count)


def _fold(seed: int) -> int:
    """A 63-bit seed as 31 bits."""
    return (seed ^ (seed >> 31) ^ (seed >> 62)) & 0x7FFFFFFF
