"""The one timing harness: validator, selection and benchmarks all compare through it.

Arms are timed in interleaved rounds: every round samples each arm once, in an order that rotates, so that a drift of
the clock or a noisy neighbour meets all of them. An arm holds one call for each input set, together larger than
the cache, so that what is measured is memory and not a warm copy. Rounds go on until the medians are known to a stated
relative standard error, or the time budget ends. How a sample is taken is the stopwatch's business (stopwatch.py).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kb.dtype import DType
from kb.manifest import Comparison, ShapeTiming
from runtime.statistics import median, median_interval, ratio_interval, relative_error

NEAR_TIE = 0.02
FLOOR_MARGIN = 0.10
CACHE_MULTIPLE = 2
RESOLUTION_US = 1e-3


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to be timed: the same work on ``calls[0]``, ``calls[1]``, … input sets, taken in turn."""

    calls: tuple[Callable[[], object], ...]

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("an arm needs at least one call")


class Sampler(Protocol):
    """Takes samples of one arm."""

    calls: int  # calls a sample covers
    overhead_us: float  # subtracted from every sample, before it is divided by ``calls``

    def __call__(self) -> float:
        """Microseconds a call."""


class Stopwatch(Protocol):
    """Makes samplers for one kind of device."""

    def prepare(self, arm: Arm) -> Sampler:
        """Warm ``arm`` up and choose how many calls make one sample."""


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop: at ``relative_error`` of every median once ``min_rounds`` are done, or at the other two."""

    relative_error: float = 0.003
    min_rounds: int = 15
    max_rounds: int = 400
    seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one arm, microseconds a call, samples in the order of the rounds."""

    samples_us: tuple[float, ...]
    calls_per_sample: int
    overhead_us: float
    median_us: float
    interval_us: tuple[float, float]
    relative_error: float

    @classmethod
    def of(cls, samples: Sequence[float], calls: int = 1, overhead_us: float = 0.0) -> Timing:
        """A timing with its statistics; no call takes less than RESOLUTION_US. Raises ValueError for no samples."""
        samples = [max(s, RESOLUTION_US) for s in samples]
        return cls(
            samples_us=tuple(samples),
            calls_per_sample=calls,
            overhead_us=overhead_us,
            median_us=median(samples),
            interval_us=median_interval(samples),
            relative_error=relative_error(samples),
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate against a baseline: ``ratio`` is T_baseline / T_candidate, ``rounds_won`` a share of the rounds."""

    comparison: Comparison
    ratio: float
    ratio_interval: tuple[float, float]
    rounds_won: float


def time_interleaved(
    arms: Mapping[str, Arm],
    stopwatch: Stopwatch,
    effort: Effort | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Timing]:
    """Time ``arms`` side by side; the result keeps their order. Whatever an arm raises passes through."""
    effort = effort or Effort()
    if not arms:
        return {}
    names = list(arms)
    samplers = {name: stopwatch.prepare(arm) for name, arm in arms.items()}
    started = clock()
    samples: dict[str, list[float]] = {name: [] for name in names}
    with _no_collection():
        for name in names:  # the first sample of each warms clocks and caches and is not kept
            samplers[name]()
        for number in range(effort.max_rounds):
            for name in _order(names, number):
                samples[name].append(samplers[name]())
            if number + 1 < effort.min_rounds:
                continue
            precise = all(relative_error(samples[name]) <= effort.relative_error for name in names)
            if precise or clock() - started >= effort.seconds:
                break
    return {n: Timing.of(samples[n], samplers[n].calls, samplers[n].overhead_us) for n in names}


def compare(
    candidate: Timing,
    baseline: Timing,
    *,
    floor_us: float = 0.0,
    near_tie: float = NEAR_TIE,
    floor_margin: float = FLOOR_MARGIN,
) -> Compared:
    """Judge two timings of the same rounds.

    ``impossible``: the candidate's median is more than ``floor_margin`` below ``floor_us``, the fewest bytes over the
    best bandwidth measured. ``faster`` and ``slower``: the whole 95 % interval of the ratio lies more than ``near_tie``
    away from 1. Everything else is ``matched``, so a kernel against itself is.
    """
    low, high = ratio_interval(baseline.samples_us, candidate.samples_us)
    pairs = zip(baseline.samples_us, candidate.samples_us, strict=True)
    won = sum(b > c for b, c in pairs) / len(candidate.samples_us)
    if candidate.median_us < floor_us * (1 - floor_margin):
        verdict = Comparison.IMPOSSIBLE
    elif low > 1 + near_tie:
        verdict = Comparison.FASTER
    elif high < 1 - near_tie:
        verdict = Comparison.SLOWER
    else:
        verdict = Comparison.MATCHED
    return Compared(verdict, baseline.median_us / candidate.median_us, (low, high), won)


def shape_timing(
    timings: Mapping[str, Timing],
    candidate: str,
    *,
    dims: Mapping[str, int],
    dtype: DType,
    bytes_moved: int,
    bandwidth_gbps: float,
    near_tie: float = NEAR_TIE,
    floor_margin: float = FLOOR_MARGIN,
) -> ShapeTiming:
    """The record of one shape: ``timings[candidate]`` against the fastest of the others.

    ``bandwidth_gbps`` is the best bandwidth measured on the device (GB/s). Raises ValueError without a baseline.
    """
    baselines = {name: timing for name, timing in timings.items() if name != candidate}
    if not baselines:
        raise ValueError("there is nothing to compare with: no baseline was timed")
    strongest = min(baselines, key=lambda name: baselines[name].median_us)
    own, other = timings[candidate], baselines[strongest]
    floor_us = bytes_moved / (bandwidth_gbps * 1e3)
    result = compare(own, other, floor_us=floor_us, near_tie=near_tie, floor_margin=floor_margin)
    return ShapeTiming(
        dims=dict(dims),
        dtype=dtype,
        candidate_us=own.median_us,
        candidate_us_interval=own.interval_us,
        baseline=strongest,
        baseline_us=other.median_us,
        baseline_us_interval=other.interval_us,
        ratio=result.ratio,
        ratio_interval=result.ratio_interval,
        comparison=result.comparison,
        floor_us=floor_us,
        bandwidth_gbps=bandwidth_gbps,
        bandwidth_share=floor_us / own.median_us,
        samples=len(own.samples_us),
        all_baselines_us={name: timing.median_us for name, timing in baselines.items()},
    )


def input_sets(bytes_a_set: int, cache_bytes: int, *, memory_bytes: int, most: int = 64) -> int:
    """How many input sets to rotate among: together more than twice the cache, within a quarter of ``memory_bytes``.

    At most ``most``: a call on a few kilobytes cannot be made cold by rotation, and in a model its inputs are not
    cold either.
    """
    wanted = CACHE_MULTIPLE * cache_bytes // max(bytes_a_set, 1) + 1
    room = memory_bytes // 4 // max(bytes_a_set, 1)
    return max(1, min(wanted, room, most))


def _order(names: Sequence[str], number: int) -> Sequence[str]:
    """Rotated by one each round and reversed every other cycle, so that no arm always follows the same one."""
    shift = number % len(names)
    turned = [*names[shift:], *names[:shift]]
    return turned[::-1] if number // len(names) % 2 else turned


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection while samples are taken."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
