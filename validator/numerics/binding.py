"""Whether a kernel rounds where the contract says it must.

Leaving out a binding round brings a result *closer* to the unrounded truth, so no tolerance can object to it. But it
shows: wherever the two ways end in different numbers of the storage type, a kernel that rounds has one and a kernel
that does not has the other. The elements vote. Elements that an honest kernel may get either way, because an
intermediate value lies on a rounding boundary, have no vote.

Rounding where it is allowed and not required adds noise that makes the vote a toss-up: such a kernel gets about as many
votes one way as the other, so only a clear majority counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kb.dtype import DType
from validator.numerics.truth import Truth

MIN_VOTES = 100
MAJORITY = 2


@dataclass(slots=True)
class Votes:
    """Votes by binding point, summed over inputs: [for rounding, for leaving it out]."""

    counts: dict[int, list[int]] = field(default_factory=dict)

    def count(self, truth: Truth, outputs: dict[str, torch.Tensor]) -> None:
        """Let the elements of ``outputs`` (whole tensors) vote."""
        for point, without in enumerate(truth.without):
            tally = self.counts.setdefault(point, [0, 0])
            for name, unrounded in without.items():
                expected = truth.expected[name]
                got = expected.written(outputs[name])
                if not got.is_floating_point():
                    continue
                rounded_way = expected.values.to(got.dtype)
                other_way = unrounded.to(got.dtype)
                entitled = (rounded_way != other_way) & torch.isfinite(rounded_way) & torch.isfinite(other_way)
                if (slack := truth.slack.get(name)) is not None:
                    entitled &= slack < (rounded_way.double() - other_way.double()).abs() / 4
                votes = torch.stack([((got == way) & entitled).sum() for way in (rounded_way, other_way)]).tolist()
                tally[0] += votes[0]
                tally[1] += votes[1]

    def left_out(self) -> tuple[int, int, int] | None:
        """(point, votes for rounding, votes against) of the first point that was left out; None when all are kept."""
        for point, (kept, left) in sorted(self.counts.items()):
            if kept + left >= MIN_VOTES and left > MAJORITY * kept:
                return point, kept, left
        return None


def nearer_to_narrow(got: torch.Tensor, truth: torch.Tensor, storage: DType, scale: torch.Tensor) -> bool:
    """For an output wider than the storage type: whether it was rounded to the storage type on the way.

    True when most elements that can tell are closer to the narrow value than to the truth. Those can tell whose two
    values are apart by far more than float32 loses on numbers of ``scale``, the size of the rows.
    """
    dtype = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}.get(storage)
    if dtype is None or got.dtype != torch.float32:
        return False
    narrow = truth.to(dtype).double()
    size = torch.maximum(truth.abs(), scale.reshape(*truth.shape[:-1], 1) if truth.dim() > 1 else scale.reshape(1))
    telling = ((narrow - truth).abs() > 1e-4 * size) & torch.isfinite(narrow)
    if not telling.any():
        return False
    closer = (got.double() - narrow).abs() < (got.double() - truth).abs()
    return bool(closer[telling].double().mean() > 0.5)
