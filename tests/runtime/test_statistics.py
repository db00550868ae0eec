from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.statistics import median, median_interval, ratio_interval, relative_error

SAMPLES = st.lists(st.floats(1.0, 1e6), min_size=4, max_size=40)


def noisy(count: int, seed: int, spread: float = 0.01) -> list[float]:
    return list(np.random.default_rng(seed).normal(100.0, 100.0 * spread, count))


def test_the_median_needs_samples() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_the_stated_error_is_the_error_of_the_median() -> None:
    medians = [median(noisy(100, seed)) for seed in range(300)]
    stated = median([relative_error(noisy(100, seed)) for seed in range(300)])
    assert np.std(medians) / 100.0 == pytest.approx(stated, rel=0.25)


def test_outliers_move_neither_the_median_nor_its_error_much() -> None:
    clean = noisy(100, 0)
    spoiled = [*clean[:90], *(10_000.0 for _ in range(10))]
    assert median(spoiled) == pytest.approx(median(clean), rel=0.005)
    assert relative_error(spoiled) < 2 * relative_error(clean)


def test_few_samples_know_nothing() -> None:
    assert relative_error([1.0, 1.0, 1.0]) == float("inf")
    assert relative_error([0.0] * 10) == float("inf")
    assert relative_error([5.0] * 4) == 0.0


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = sum(low <= 100.0 <= high for low, high in (median_interval(noisy(40, s)) for s in range(200)))
    assert 0.88 <= held / 200 <= 1.0


@given(SAMPLES)
def test_the_interval_lies_within_the_samples_and_around_the_median(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert min(samples) <= low <= high <= max(samples)
    assert low <= median(samples) <= high


@given(SAMPLES)
def test_a_series_against_itself_is_exactly_one(samples: list[float]) -> None:
    assert ratio_interval(samples, samples) == (1.0, 1.0)


@given(SAMPLES, st.floats(0.1, 10.0))
def test_a_drift_that_both_share_cancels(samples: list[float], factor: float) -> None:
    low, high = ratio_interval([s * factor for s in samples], samples)
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


def test_statistics_are_the_same_every_time() -> None:
    assert median_interval(noisy(30, 1)) == median_interval(noisy(30, 1))


def test_series_of_different_lengths_are_not_compared() -> None:
    with pytest.raises(ValueError, match="round by round"):
        ratio_interval([1.0, 2.0], [1.0])
