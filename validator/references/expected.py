"""What a written tensor must hold after a call, and what must not have changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Expected:
    """The truth about one ``out`` or ``inout`` tensor.

    ``values``: float64, or int64 for an index output; shaped like ``written(tensor)``. Never rounded to the storage
    type at the end: rounding the result is part of what is judged, for the baseline as for the candidate.
    ``rows``: the written rows of a cache, indices into its first two dims taken as one; None: every row.
    ``ignored``: rows of a cache whose contents nobody reads (padding rows that share a dummy slot).
    ``columns``: how many leading elements of the last dim are written; None: all.
    ``scores``: for an index output, the float64 score of every choice, [rows, choices].
    ``terms``: for an output of few numbers that are sums, the size of each sum's terms (the root of the sum of their
    squares), shaped like ``values``: a sum may cancel, and then its error is still that of its terms.
    """

    values: torch.Tensor
    rows: torch.Tensor | None = None
    ignored: torch.Tensor | None = None
    columns: int | None = None
    scores: torch.Tensor | None = None
    terms: torch.Tensor | None = None

    def written(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of ``tensor`` (the whole argument, any dtype) that ``values`` speaks about."""
        if self.rows is not None:
            tensor = tensor.flatten(0, 1)[self.rows]
        return tensor if self.columns is None else tensor[..., : self.columns]

    def first_change(self, before: torch.Tensor, after: torch.Tensor) -> tuple[int, ...] | None:
        """Index of the first element outside the written part whose bits differ, None when there is none."""
        bits = _BITS[before.element_size()]
        changed = before.view(bits) != after.view(bits)
        if self.rows is not None:
            flat = changed.flatten(0, 1)
            flat[self.rows] = False
            if self.ignored is not None:
                flat[self.ignored] = False
        elif self.columns is not None:
            changed[..., : self.columns] = False
        else:
            return None
        found = changed.nonzero()
        return tuple(int(i) for i in found[0]) if len(found) else None


def written_rows(values: torch.Tensor, slots: torch.Tensor) -> Expected:
    """Expected contents of a cache whose row ``slots[t]`` receives ``values[t]``; slots used twice are ignored."""
    slots = slots.long()
    unique, counts = torch.unique(slots, return_counts=True)
    shared = unique[counts > 1]
    once = ~torch.isin(slots, shared)
    return Expected(values[once].double(), rows=slots[once], ignored=shared if len(shared) else None)
