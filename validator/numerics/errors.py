"""Error of one output against its float64 truth.

Two numbers are compared, because one hides what the other shows. The *typical* error is the root mean square over rows
of each row's error relative to that row's own size: steady enough to compare with a baseline's by a factor, and a tiny
row counts as much as a large one. The *worst* error is that of a single element, relative to the larger of the element
and its row: one lost tile or one wrong tail cannot hide in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kb.dtype import DType

EPS = {DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10, DType.FLOAT32: 2.0**-23}
# Root mean square of one rounding to nearest, in units of the spacing.
ONE_ROUNDING = 1 / math.sqrt(12)


@dataclass(frozen=True, slots=True)
class Error:
    """``typical`` and ``worst`` as above; ``place`` is the index of the worst element."""

    typical: float
    worst: float
    place: tuple[int, ...]


def error_of(got: torch.Tensor, truth: torch.Tensor, scale: torch.Tensor, slack: torch.Tensor | None = None) -> Error:
    """Error of ``got`` (any float dtype) against ``truth`` (float64), both finite where they count.

    ``scale``: size of every row, from row_scale. ``slack``: float64, how far each element may be off before its error
    counts as worst (elements whose intermediate lies on a rounding boundary). Positions where ``truth`` is not finite
    must have been dealt with and are left out.
    """
    difference = (got.double() - truth).abs()
    difference = torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference))
    rows = _by_row(difference)
    typical = (rows.square().mean(-1, keepdim=True) / scale.square()).mean().sqrt()
    element = torch.maximum(_by_row(truth).abs().nan_to_num(0, 0, 0), scale)
    beyond = rows if slack is None else (rows - _by_row(slack)).clamp(min=0)
    relative = beyond / element
    if not relative.numel():
        return Error(0.0, 0.0, ())
    worst, index = relative.flatten().max(0)
    # Read together: on a GPU that other processes use too, every number that is waited for takes milliseconds.
    found = torch.stack((typical, worst, index.double())).tolist()
    return Error(found[0], found[1], _unravelled(int(found[2]), difference.shape))


def _unravelled(index: int, shape: torch.Size) -> tuple[int, ...]:
    """Where the element number ``index`` lies. torch's own imports a computer algebra system, which takes a second."""
    place: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        place.append(rest)
    return tuple(reversed(place))


def row_scale(truth: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """Size of every row of ``truth``: its root mean square, [rows, 1], float64, never zero.

    ``before``: what an updated tensor held. A sum may cancel, and its error is that of its terms. A row of zeros takes
    a millionth of the tensor's size, so that anything visible in it is an error.
    """
    squares = _by_row(truth).nan_to_num(0, 0, 0).square().mean(-1, keepdim=True)
    if before is not None:
        squares = squares + _by_row(before.double()).nan_to_num(0, 0, 0).square().mean(-1, keepdim=True)
    whole = squares.mean().sqrt()
    return torch.maximum(squares.sqrt(), (whole * 1e-6).clamp(min=1e-30))


def finiteness(
    got: torch.Tensor, truth: torch.Tensor, baseline: torch.Tensor | None = None
) -> tuple[tuple[int, ...], float, float] | None:
    """First position where ``got`` is finite and must not be, or the other way round: (index, got, expected).

    What the truth rounds to in ``got``'s type decides; within two percent of its largest number either passes, and so
    it does where the baseline overflowed on the way to a finite truth.
    """
    expected = truth.to(got.dtype)
    largest = torch.finfo(got.dtype).max
    unsure = (truth.abs() > 0.98 * largest) & (truth.abs() < 1.02 * largest)
    if baseline is not None:
        unsure |= torch.isfinite(expected) & ~torch.isfinite(baseline)
    kind_got, kind_expected = _kind(got), _kind(expected)
    wrong = (kind_got != kind_expected) & ~unsure
    if not wrong.any():
        return None
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return place, float(got[place]), float(expected[place])


def _kind(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 plus infinity, 2 minus infinity, 3 NaN."""
    kind = torch.zeros(values.shape, dtype=torch.int8, device=values.device)
    kind[values == math.inf] = 1
    kind[values == -math.inf] = 2
    kind[torch.isnan(values)] = 3
    return kind


def _by_row(values: torch.Tensor) -> torch.Tensor:
    """[rows, width]; a vector is one row."""
    return values.reshape(1, -1) if values.dim() <= 1 else values.reshape(-1, values.shape[-1])
