"""Interleaved timing on a CPU: the candidate in its own process by the supervisor's clock, the library path in ours."""

from __future__ import annotations

import statistics
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

_SAMPLE_US = 3000.0
# Threads of one arm's pool spin for a while after its last call; they must be asleep before the other is timed.
_SETTLE_SECONDS = 0.003
_MOST_SETS, _MOST_SETS_QUICK = 64, 4


class TimedOutputWrong(Exception):  # noqa: N818 - a finding about the candidate
    """A timed call did not give what the same input gave when it was checked."""


class _Stopwatch:
    """Arms here hold their sampler; preparing them is its first use."""

    def prepare(self, arm: Arm) -> Sampler:
        sampler: Sampler = arm.calls[0]  # type: ignore[assignment]
        return sampler


class _Candidate:
    """Samples of the candidate. Outputs are poisoned before each and compared after it."""

    def __init__(self, context: Context, sets: HostSets, passes: int) -> None:
        self._resident = context.resident(timing=True)
        self._limit = context.options.call_seconds
        self._sets = sets
        self._passes = passes
        self.calls = passes * len(sets.sets)
        empty = [self._resident.call([], self._limit) for _ in range(20)]
        self.overhead_us = min(empty) * 1e6  # the least a request takes: never more than any request took

    def __call__(self) -> float:
        calls = self._sets.arm_candidate()
        time.sleep(_SETTLE_SECONDS)
        seconds = self._resident.call(calls * self._passes, self._limit + 1.0)
        if (where := self._sets.wrong_output()) is not None:
            raise TimedOutputWrong(where)
        return max(seconds * 1e6 - self.overhead_us, 0.0) / self.calls


class _Library:
    """Samples of a library path on the same inputs, with outputs of its own."""

    overhead_us = 0.0

    def __init__(self, calls: Sequence[Callable[[], None]], passes: int, restore: Callable[[], None]) -> None:
        self._calls = list(calls) * passes
        self._restore = restore
        self.calls = len(self._calls)

    def __call__(self) -> float:
        self._restore()
        time.sleep(_SETTLE_SECONDS)
        started = time.perf_counter_ns()
        for call in self._calls:
            call()
        return (time.perf_counter_ns() - started) / 1e3 / self.calls


def time_on_host(
    context: Context, shape: Shape, storage: DType, bandwidth_gbps: float, seconds: float
) -> tuple[ShapeTiming | None, list[Finding]]:
    """The record of one shape and what was wrong with it. Raises WorkerFailure."""
    resident = context.resident(timing=True)
    quick = context.options.quick
    sets = HostSets(
        context,
        resident,
        shape,
        storage,
        min_bytes=CACHE_MULTIPLE * context.device.cache_bytes,
        most=_MOST_SETS_QUICK if quick else _MOST_SETS,
        seed=context.seed_for("timing", shape.dims, storage),
    )
    if findings := sets.verify():
        return None, findings
    once = statistics.median(resident.call(sets.arm_candidate(), context.options.call_seconds) for _ in range(3)) * 1e6
    repeatable = sets.idempotent and not sets.remembers
    passes = max(1, min(round(_SAMPLE_US / max(once, 1.0)), 200)) if repeatable else 1
    arms = {CANDIDATE: Arm((_Candidate(context, sets, passes),))}
    for baseline in context.baselines():
        work = [_own_outputs(context, shape, storage, item.inputs) for item in sets.sets]
        try:
            calls = [baseline.prepare(context.contract, shape.dims, storage, w.tensors, w.scalars) for w in work]
        except UnsupportedShapeError:
            continue
        arms[baseline.name] = Arm((_Library(calls, passes, _restoring(context, sets, work)),))
    if len(arms) == 1:
        message = f"no library path can do this shape here ({', '.join(b.name for b in context.baselines()) or 'none'})"
        return None, [Finding(code="no-baseline", message=message, shape=dict(shape.dims))]
    effort = Effort(0.01, 5, 40, seconds) if quick else Effort(0.003, 15, 200, seconds)
    try:
        timings = time_interleaved(arms, _Stopwatch(), effort)
    except TimedOutputWrong as wrong:
        message = f"{wrong} was wrong after a timed call and right when it was checked"
        return None, [Finding(code="timed-output-wrong", message=message, shape=dict(shape.dims))]
    return record(context.contract, shape.dims, storage, timings, bandwidth_gbps, sets.cold), []


def _own_outputs(context: Context, shape: Shape, storage: DType, inputs: CallInputs) -> CallInputs:
    """The same inputs with outputs (and updated tensors) in memory of the judge's own."""
    own = allocate_outputs(context.contract, shape.dims, storage)
    for tensor in context.contract.tensors:
        values = inputs.tensors.get(tensor.name)
        if tensor.role is Role.INOUT and values is not None:
            own[tensor.name] = values.clone()
    return inputs.with_tensors(own)


def _restoring(context: Context, sets: HostSets, work: Sequence[CallInputs]) -> Callable[[], None]:
    """Puts updated tensors back before each sample, as is done for the candidate."""

    def restore() -> None:
        for item, own in zip(sets.sets, work, strict=True):
            for name, values in item.before.items():
                target = own.tensors[name]
                assert target is not None
                target.copy_(values)

    del context
    return restore
