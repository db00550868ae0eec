"""Whether results lean to one side, as they do when a kernel cuts bits off instead of rounding to nearest.

Truncation makes twice the error of rounding, which a tolerance that leaves room for rounded intermediates may admit.
But it never errs upwards: the errors of rounding to nearest average to nothing, those of truncation to half a spacing.

Errors of one row may agree for an honest reason (a factor of the whole row, a probability, was rounded), so rows are
the sample: their means must lean the same way by far more than their spread explains, and by a good part of what
truncation gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kb.dtype import DType
from validator.numerics.errors import EPS
from validator.numerics.truth import Truth

# Mean error in spacings of the storage type; truncation has 0.5.
LEAN = 0.25
# The mean must also be so many standard errors away from zero.
SURE = 6.0
MIN_ROWS, MIN_ELEMENTS = 4, 400
# Elements that are this close to a number of the storage type (in spacings) are stored exactly either way.
_EXACT = 0.02

_NARROW = {torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16}
_SIDES = ("towards zero", "downwards")


@dataclass(slots=True)
class _Sum:
    """Row means of one output on one side: their number, sum and sum of squares; and the elements behind them."""

    rows: int = 0
    elements: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, means: torch.Tensor, elements: int) -> None:
        self.rows += len(means)
        self.elements += elements
        self.total += float(means.sum())
        self.squares += float(means.square().sum())

    @property
    def mean(self) -> float:
        return self.total / max(self.rows, 1)

    @property
    def leans(self) -> bool:
        if self.rows < MIN_ROWS or self.elements < MIN_ELEMENTS or self.mean > -LEAN:
            return False
        spread = math.sqrt(max(self.squares / self.rows - self.mean**2, 0.0) / self.rows)
        return -self.mean > SURE * spread


@dataclass(slots=True)
class Drift:
    """Errors of narrow outputs by output and side, summed over the inputs of one shape and type."""

    sums: dict[tuple[str, str], _Sum] = field(default_factory=dict)

    def count(self, truth: Truth, outputs: Mapping[str, torch.Tensor]) -> None:
        """Add the errors of ``outputs`` (whole tensors by name)."""
        for name, expected in truth.expected.items():
            got = expected.written(outputs[name])
            if got.dtype not in _NARROW or not got.numel():
                continue
            errors, counts = _errors(got, expected.values)
            if counts is None:
                continue
            sign = expected.values.reshape(counts.shape).sign()
            number = counts.sum(-1)
            telling = number > 0
            for side, signed in zip(_SIDES, (errors * sign, errors), strict=True):
                means = (signed.sum(-1) / number.clamp(min=1))[telling]
                self.sums.setdefault((name, side), _Sum()).add(means, int(number.sum()))

    def found(self) -> tuple[str, str, float] | None:
        """(output, side, mean error in spacings) of the first output that leans; None when none does."""
        for (name, side), total in self.sums.items():
            if total.leans:
                return name, side, total.mean
        return None


def _errors(got: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Errors in spacings of ``got``'s type, at most one either way, and where they count; both [rows, width].

    They count where the truth is an ordinary number that the type does not hold exactly.
    """
    eps = EPS[_NARROW[got.dtype]]
    info = torch.finfo(got.dtype)
    width = truth.shape[-1]
    size = truth.abs()
    ordinary = torch.isfinite(truth) & (size > 2 * info.tiny) & (size < 0.9 * info.max) & torch.isfinite(got)
    spacing = torch.exp2(torch.floor(torch.log2(torch.where(ordinary, size, torch.ones_like(size))))) * eps
    inexact = (truth.to(got.dtype).double() - truth).abs() > _EXACT * spacing
    counts = ordinary & inexact
    if not counts.any():
        return truth, None
    errors = ((got.double() - truth) / spacing).clamp(-1, 1)
    return torch.where(counts, errors, torch.zeros_like(errors)).reshape(-1, width), counts.reshape(-1, width)
