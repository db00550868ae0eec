"""Interleaved timing on a CPU: the candidate in its own process by the supervisor's clock, the library path in ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kb.contract import Role
from kb.dtype import DType
from kb.manifest import Finding, ShapeTiming
from runtime.baselines import UnsupportedShapeError
from runtime.timing import CACHE_MULTIPLE, Arm, Effort, Sampler, time_interleaved
from validator.gates.context import Context
from validator.inputs import CallInputs, allocate_outputs
from validator.performance.host_sets import HostSets
from validator.performance.verdict import CANDIDATE, record
from validator.shapes import Shape

# Threads of one arm's pool spin for a while after its last call; they must be asleep before the other is timed.
_SETTLE_SECONDS = 0.003
# A sample is one call of every set. Calls of a few microseconds need many for their sum to be measured.
_MOST_SETS, _MOST_SETS_QUICK = 128, 16
_VERIFIED, _VERIFIED_QUICK = 8, 2


class TimedOutputWrong(Exception):  # noqa: N818 - a finding about the candidate
    """A timed call did not give what its input asked for."""


class _Stopwatch:
    """Arms here hold their sampler; preparing them is its first use."""

    def prepare(self, arm: Arm) -> Sampler:
        sampler: Sampler = arm.calls[0]  # type: ignore[assignment]
        return sampler


class _Round:
    """One sample of each arm on the same contents. A new one starts when an arm comes round again."""

    def __init__(self, sets: HostSets, reference: Sequence[CallInputs]) -> None:
        self._sets = sets
        self._reference = reference
        self._done: set[str] = set()

    def enter(self, arm: str, judged_by: str) -> None:
        """``judged_by``: the arm whose outputs the candidate's are compared with."""
        if arm in self._done:
            self.check(judged_by)
            self._done.clear()
        if not self._done:
            self._sets.draw()
        self._done.add(arm)

    def check(self, judged_by: str) -> None:
        """Compare what the candidate gave in this round. Raises TimedOutputWrong."""
        if {CANDIDATE, judged_by} <= self._done and (where := self._sets.first_difference(self._reference)):
            raise TimedOutputWrong(where)


class _Candidate:
    """Samples of the candidate: one call of every set, each on contents it has never seen."""

    def __init__(self, context: Context, sets: HostSets, enter: Callable[[str], None]) -> None:
        self._resident = context.resident(timing=True)
        self._limit = context.options.call_seconds + 1.0
        self._sets, self._enter = sets, enter
        self.calls = len(sets.sets)
        empty = [self._resident.call([], self._limit) for _ in range(20)]
        self.overhead_us = min(empty) * 1e6  # the least a request takes: never more than any request took

    def __call__(self) -> float:
        self._enter(CANDIDATE)
        time.sleep(_SETTLE_SECONDS)
        self._resident.call([self._sets.warming.call], self._limit, freeze=False)
        seconds = self._resident.call(self._sets.calls, self._limit)
        return max(seconds * 1e6 - self.overhead_us, 0.0) / self.calls


class _Library:
    """Samples of a library path on the same inputs, with outputs of its own."""

    overhead_us = 0.0

    def __init__(
        self, name: str, calls: Sequence[Callable[[], None]], enter: Callable[[str], None], restore: Callable[[], None]
    ) -> None:
        self._name = name
        *self._calls, self._warming = calls
        self._enter, self._restore = enter, restore
        self.calls = len(self._calls)

    def __call__(self) -> float:
        self._enter(self._name)
        self._restore()
        time.sleep(_SETTLE_SECONDS)
        self._warming()
        started = time.perf_counter_ns()
        for call in self._calls:
            call()
        return (time.perf_counter_ns() - started) / 1e3 / self.calls


def time_on_host(
    context: Context, shape: Shape, storage: DType, bandwidth_gbps: float, seconds: float
) -> tuple[ShapeTiming | None, list[Finding]]:
    """The record of one shape and what was wrong with it. Raises WorkerFailure."""
    quick = context.options.quick
    sets = HostSets(
        context,
        context.resident(timing=True),
        shape,
        storage,
        min_bytes=CACHE_MULTIPLE * context.device.cache_bytes,
        most=_MOST_SETS_QUICK if quick else _MOST_SETS,
        seed=context.seed_for("timing", shape.dims, storage),
    )
    if findings := sets.verify(_VERIFIED_QUICK if quick else _VERIFIED):
        return None, findings
    libraries = _libraries(context, shape, storage, sets)
    if not libraries:
        message = f"no library path can do this shape here ({', '.join(b.name for b in context.baselines()) or 'none'})"
        return None, [Finding(code="no-baseline", message=message, shape=dict(shape.dims))]
    judge = next(iter(libraries))
    rounds = _Round(sets, libraries[judge][0][:-1])

    def enter(arm: str) -> None:
        rounds.enter(arm, judge)

    arms = {CANDIDATE: Arm((_Candidate(context, sets, enter),))}
    for name, (work, calls) in libraries.items():
        arms[name] = Arm((_Library(name, calls, enter, _restoring(sets, work)),))
    effort = Effort(0.01, 5, 40, seconds) if quick else Effort(0.003, 15, 200, seconds)
    try:
        timings = time_interleaved(arms, _Stopwatch(), effort)
        rounds.check(judge)
    except TimedOutputWrong as wrong:
        message = f"{wrong}: a timed call was wrong where the same shape was right when it was checked"
        return None, [Finding(code="timed-output-wrong", message=message, shape=dict(shape.dims))]
    return record(context.contract, shape.dims, storage, timings, bandwidth_gbps, sets.cold, context.target), []


def _libraries(
    context: Context, shape: Shape, storage: DType, sets: HostSets
) -> dict[str, tuple[list[CallInputs], list[Callable[[], None]]]]:
    """By library path: its tensors and its calls, set by set, those of the warming set last."""
    found = {}
    for baseline in context.baselines():
        work = [_own_outputs(context, shape, storage, item.inputs) for item in (*sets.sets, sets.warming)]
        try:
            calls = [baseline.prepare(context.contract, shape.dims, storage, w.tensors, w.scalars) for w in work]
        except UnsupportedShapeError:
            continue
        found[baseline.name] = work, calls
    return found


def _own_outputs(context: Context, shape: Shape, storage: DType, inputs: CallInputs) -> CallInputs:
    """The same inputs with outputs (and updated tensors) in memory of the judge's own."""
    own = allocate_outputs(context.contract, shape.dims, storage)
    for tensor in context.contract.tensors:
        values = inputs.tensors.get(tensor.name)
        if tensor.role is Role.INOUT and values is not None:
            own[tensor.name] = values.clone()
    return inputs.with_tensors(own)


def _restoring(sets: HostSets, work: Sequence[CallInputs]) -> Callable[[], None]:
    """Puts updated tensors in place before each sample, as is done for the candidate."""

    def restore() -> None:
        for item, own in zip((*sets.sets, sets.warming), work, strict=True):
            for name, values in item.before.items():
                target = own.tensors[name]
                assert target is not None
                target.copy_(values)

    return restore
