"""What the scheduler decided for one step, as data the executor carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions ``start .. start + length`` of one request.

    ``emits``: the last of them is the request's newest token, so the step produces the next one; a partial prefill
    produces nothing. ``slot`` is the request's place in the device's per-request tables during this step. ``blocks``
    is its block table, which may only grow while ``life`` stays the same.
    """

    request: Request
    start: int
    length: int
    emits: bool
    slot: int
    blocks: Sequence[int]
    life: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does. Copies come first, outgoing before incoming.

    ``decode`` chunks are one position each and take their token from the device's table; ``prefill`` chunks bring
    their tokens from the host; those that emit come first. ``swap_out`` and ``swap_in`` are pairs (device block, host
    block).
    """

    decode: tuple[Chunk, ...]
    prefill: tuple[Chunk, ...]
    swap_out: tuple[tuple[int, int], ...] = ()
    swap_in: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows the model computes."""
        return len(self.decode) + sum(chunk.length for chunk in self.prefill)

    @property
    def emitting(self) -> tuple[Chunk, ...]:
        """Chunks that produce a token, in row order."""
        return tuple(chunk for chunk in (*self.decode, *self.prefill) if chunk.emits)

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill or self.swap_out or self.swap_in)
