from __future__ import annotations

from functools import partial

import pytest

from kb.dtype import Target
from runtime.stopwatch import CpuStopwatch, stopwatch_for
from runtime.timing import Arm, Effort, time_interleaved


class Clock:
    """A clock that moves only when work is done."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def work(self, ns: int, log: list[int] | None = None, which: int = 0) -> None:
        self.now_ns += ns
        if log is not None:
            log.append(which)


@pytest.mark.parametrize("microseconds", [0.5, 3.0, 250.0, 90_000.0])
def test_a_call_is_timed_to_what_it_takes_however_long(microseconds: float) -> None:
    clock = Clock()
    arm = Arm((partial(clock.work, int(microseconds * 1000)),))
    sampler = CpuStopwatch(4000.0, clock).prepare(arm)
    assert sampler() == pytest.approx(microseconds)
    assert sampler.calls * microseconds == pytest.approx(4000.0, rel=0.5) or sampler.calls == 1


def test_calls_that_take_no_time_at_all_end_the_search_for_a_count() -> None:
    sampler = CpuStopwatch(4000.0, Clock()).prepare(Arm((lambda: None,)))
    assert sampler() == 0.0


def test_input_sets_are_taken_in_turn_across_samples() -> None:
    clock, log = Clock(), []  # type: tuple[Clock, list[int]]
    arm = Arm(tuple(partial(clock.work, 1_000_000, log, i) for i in range(5)))
    sampler = CpuStopwatch(3000.0, clock).prepare(arm)
    assert sampler.calls == 3
    log.clear()
    for _ in range(5):
        sampler()
    assert sorted(log) == sorted([0, 1, 2, 3, 4] * 3)


def test_two_arms_on_one_clock_keep_their_own_times() -> None:
    clock = Clock()
    arms = {"short": Arm((partial(clock.work, 10_000),)), "long": Arm((partial(clock.work, 30_000),))}
    timings = time_interleaved(arms, CpuStopwatch(1000.0, clock), Effort(seconds=1e9), clock=lambda: 0.0)
    assert timings["short"].median_us == pytest.approx(10.0)
    assert timings["long"].median_us == pytest.approx(30.0)
    assert timings["short"].overhead_us == 0.0


def test_the_processor_is_timed_with_the_hosts_clock() -> None:
    assert isinstance(stopwatch_for(Target.CPU), CpuStopwatch)
