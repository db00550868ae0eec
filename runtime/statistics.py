"""Medians and their uncertainty: what a timing needs to be told from noise. Pure; the seed is fixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 1000
# Standard error of a median over that of a mean for normal noise, sqrt(pi / 2), and the standard deviation over the
# median absolute deviation, 1 / Phi^-1(3/4).
_MEDIAN_FACTOR = 1.2533
_MAD_FACTOR = 1.4826


def median(samples: Sequence[float]) -> float:
    """The middle value. Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no samples")
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def relative_error(samples: Sequence[float]) -> float:
    """Standard error of the median over the median, from the median absolute deviation; outliers do not move it.

    Infinite for fewer than four samples and for a median of zero.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) < 4:
        return float("inf")
    middle = float(np.median(values))
    if middle == 0:
        return float("inf")
    deviation = _MAD_FACTOR * float(np.median(np.abs(values - middle)))
    return _MEDIAN_FACTOR * deviation / middle / float(np.sqrt(len(values)))


def median_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    values = np.asarray(samples, dtype=np.float64)
    return _interval(np.median(values[_resample(len(values), seed)], axis=1))


def ratio_interval(above: Sequence[float], below: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of median(above) / median(below).

    The two are paired by round, and rounds are resampled whole: what slowed a round down slowed both, and cancels.
    Raises ValueError for different lengths.
    """
    if len(above) != len(below):
        raise ValueError(f"{len(above)} samples against {len(below)}; they are compared round by round")
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    chosen = _resample(len(a), seed)
    return _interval(np.median(a[chosen], axis=1) / np.median(b[chosen], axis=1))


def _resample(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))


def _interval(statistics: NDArray[np.float64]) -> tuple[float, float]:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(statistics, [tail, 100 - tail])
    return float(low), float(high)
