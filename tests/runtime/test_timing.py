"""The harness on a clock that tests control: nothing here depends on how fast this machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.dtype import DType
from kb.manifest import Comparison
from runtime.timing import Arm, Effort, Sampler, Timing, compare, input_sets, shape_timing, time_interleaved


def nothing() -> None:
    """A call that does no work."""


@dataclass
class FakeSampler:
    """Gives the next of ``values``, and says so to ``seen``."""

    name: str
    values: Iterator[float]
    seen: list[str]
    calls: int = 10
    overhead_us: float = 1.5

    def __call__(self) -> float:
        self.seen.append(self.name)
        return next(self.values)


@dataclass
class FakeStopwatch:
    """One sampler an arm, told apart by the arm's first call."""

    series: dict[Callable[[], object], tuple[str, Iterator[float]]]
    seen: list[str] = field(default_factory=list)

    def prepare(self, arm: Arm) -> Sampler:
        name, values = self.series[arm.calls[0]]
        return FakeSampler(name, values, self.seen)


def run(effort: Effort | None = None, **series: Iterator[float]) -> tuple[dict[str, Timing], list[str]]:
    """Time arms that give these samples; the order in which they were sampled comes with them."""
    arms, table = {}, {}
    for name, values in series.items():

        def call() -> None:
            """This arm's own call."""

        arms[name] = Arm((call,))
        table[call] = (name, values)
    watch = FakeStopwatch(table)
    return time_interleaved(arms, watch, effort or Effort(seconds=1e9)), watch.seen


def noise(mean: float, seed: int, spread: float = 0.02) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield float(mean * np.exp(generator.normal(0, spread)))


def constant(value: float) -> Iterator[float]:
    while True:
        yield value


@pytest.mark.parametrize("seed", range(20))
def test_a_kernel_against_itself_is_matched(seed: int) -> None:
    timings, _ = run(a=noise(50.0, 2 * seed), b=noise(50.0, 2 * seed + 1))
    assert compare(timings["a"], timings["b"]).comparison is Comparison.MATCHED


@pytest.mark.parametrize("seed", range(10))
def test_five_percent_is_told_apart_in_both_directions(seed: int) -> None:
    timings, _ = run(fast=noise(50.0, seed), slow=noise(52.5, seed + 100))
    faster = compare(timings["fast"], timings["slow"])
    assert faster.comparison is Comparison.FASTER
    assert faster.ratio == pytest.approx(1.05, rel=0.02)
    assert faster.rounds_won > 0.8
    assert compare(timings["slow"], timings["fast"]).comparison is Comparison.SLOWER


def test_a_certain_win_smaller_than_a_near_tie_is_matched() -> None:
    timings, _ = run(a=constant(100.0), b=constant(101.0))
    result = compare(timings["a"], timings["b"])
    assert result.comparison is Comparison.MATCHED
    assert result.rounds_won == 1.0
    assert compare(timings["a"], timings["b"], near_tie=0.005).comparison is Comparison.FASTER


def test_a_drift_over_the_run_does_not_make_a_difference() -> None:
    def drifting(seed: int) -> Iterator[float]:
        return (value * (1 + i / 50) for i, value in enumerate(noise(50.0, seed, 0.002)))

    timings, _ = run(Effort(max_rounds=60, seconds=1e9), a=drifting(1), b=drifting(2))
    assert compare(timings["a"], timings["b"]).comparison is Comparison.MATCHED


def test_a_spike_in_some_rounds_does_not_make_a_difference() -> None:
    spiky = (500.0 if i % 7 == 0 else value for i, value in enumerate(noise(50.0, 3, 0.005)))
    timings, _ = run(Effort(max_rounds=80, seconds=1e9), a=spiky, b=noise(50.0, 4, 0.005))
    assert compare(timings["a"], timings["b"]).comparison is Comparison.MATCHED


def test_below_the_floor_is_impossible_whatever_the_baseline_does() -> None:
    timings, _ = run(cheat=constant(8.9), base=constant(30.0), same=constant(8.9))
    assert compare(timings["cheat"], timings["base"], floor_us=10.0).comparison is Comparison.IMPOSSIBLE
    assert compare(timings["cheat"], timings["same"], floor_us=10.0).comparison is Comparison.IMPOSSIBLE
    assert compare(timings["cheat"], timings["base"], floor_us=9.8).comparison is Comparison.FASTER
    assert compare(timings["cheat"], timings["base"], floor_us=10.0, floor_margin=0.2).comparison is Comparison.FASTER


def test_a_time_of_zero_is_impossible_and_not_an_error() -> None:
    timings, _ = run(Effort(max_rounds=20, seconds=1e9), cheat=constant(0.0), base=constant(30.0))
    result = compare(timings["cheat"], timings["base"], floor_us=1.0)
    assert result.comparison is Comparison.IMPOSSIBLE
    assert result.ratio == 30_000


def test_every_round_samples_every_arm_and_the_order_rotates() -> None:
    effort = Effort(min_rounds=6, max_rounds=6, seconds=1e9)
    timings, seen = run(effort, a=constant(1.0), b=constant(1.0), c=constant(1.0))
    assert seen[:3] == ["a", "b", "c"], "the first pass only warms up"
    rounds = [tuple(seen[i : i + 3]) for i in range(3, len(seen), 3)]
    assert all(set(r) == {"a", "b", "c"} for r in rounds)
    assert len(set(rounds)) == 6, "every order comes once"
    assert [len(t.samples_us) for t in timings.values()] == [6, 6, 6]


def test_it_stops_when_the_medians_are_known_well_enough() -> None:
    wanted = Effort(relative_error=0.001, min_rounds=10, max_rounds=400, seconds=1e9)
    timings, _ = run(wanted, a=noise(50.0, 1, 0.005), b=noise(60.0, 2, 0.005))
    assert all(t.relative_error <= 0.001 for t in timings.values())
    assert 10 <= len(timings["a"].samples_us) < 400


def test_it_stops_at_the_most_rounds() -> None:
    timings, _ = run(Effort(relative_error=0.0, min_rounds=5, max_rounds=30, seconds=1e9), a=noise(50.0, 1, 0.5))
    assert len(timings["a"].samples_us) == 30


def test_it_stops_when_the_time_is_up_but_not_before_the_fewest_rounds() -> None:
    ticks = iter(range(1000))
    call_a = Arm((nothing,))
    watch = FakeStopwatch({nothing: ("a", noise(50.0, 1, 0.5))})
    effort = Effort(relative_error=0.0, min_rounds=8, max_rounds=400, seconds=3.0)
    timings = time_interleaved({"a": call_a}, watch, effort, clock=lambda: float(next(ticks)))
    assert len(timings["a"].samples_us) == 10


def test_what_an_arm_raises_passes_through_and_collection_is_on_again() -> None:
    import gc

    def failing() -> Iterator[float]:
        yield from (1.0, 1.0)
        raise RuntimeError("the kernel failed")

    with pytest.raises(RuntimeError, match="the kernel failed"):
        run(a=failing())
    assert gc.isenabled()


def test_a_timing_says_how_it_was_taken() -> None:
    timings, _ = run(a=constant(4.0))
    timing = timings["a"]
    assert (timing.calls_per_sample, timing.overhead_us) == (10, 1.5)
    assert (timing.median_us, timing.interval_us, timing.relative_error) == (4.0, (4.0, 4.0), 0.0)


def test_nothing_to_time_gives_nothing() -> None:
    assert time_interleaved({}, FakeStopwatch({})) == {}
    with pytest.raises(ValueError, match="at least one call"):
        Arm(())


def test_the_record_is_against_the_strongest_baseline() -> None:
    timings, _ = run(mine=constant(20.0), torch=constant(40.0), triton=constant(25.0))
    record = shape_timing(
        timings, "mine", dims={"num_tokens": 1}, dtype=DType.BFLOAT16, bytes_moved=40_000_000, bandwidth_gbps=4000.0
    )
    assert (record.baseline, record.baseline_us, record.ratio) == ("triton", 25.0, 1.25)
    assert record.all_baselines_us == {"torch": 40.0, "triton": 25.0}
    assert (record.floor_us, record.bandwidth_share) == (10.0, 0.5)
    assert record.comparison is Comparison.FASTER


def test_a_record_needs_a_baseline() -> None:
    timings, _ = run(mine=constant(20.0))
    with pytest.raises(ValueError, match="no baseline"):
        shape_timing(timings, "mine", dims={}, dtype=DType.FLOAT32, bytes_moved=1, bandwidth_gbps=1.0)


@given(st.integers(1, 1 << 40), st.integers(1 << 20, 1 << 30), st.integers(1 << 30, 1 << 38))
def test_input_sets_fill_the_cache_twice_unless_memory_or_the_limit_forbid(one: int, cache: int, memory: int) -> None:
    count = input_sets(one, cache, memory_bytes=memory)
    assert 1 <= count <= 64
    assert count == 1 or count * one <= memory // 4
    if count not in (1, 64) and (count + 1) * one <= memory // 4:
        assert count * one > 2 * cache
