"""How one sample is taken: CUDA graphs between events, or a loop between two readings of the host's clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch

from kb.dtype import Target
from runtime.timing import Arm, Sampler, Stopwatch

# A CUDA sample lasts about this long: replaying a graph costs a few microseconds, whatever is in it.
CUDA_SAMPLE_US = 1000.0
CUDA_MAX_CALLS = 1024
CPU_SAMPLE_US = 4000.0
CPU_MAX_CALLS = 1 << 16
_SPIN_CYCLES = 200_000  # about 0.1 ms, longer than the host takes to enqueue a replay
_cuda: Any = torch.cuda  # events, streams and the spinning kernel have no type annotations


def stopwatch_for(target: Target) -> Stopwatch:
    """The stopwatch for kernels of ``target``, on torch's current device."""
    return CudaStopwatch() if target is Target.CUDA else CpuStopwatch()


class CpuStopwatch:
    """Times a loop over the arm's calls. The interpreter's own share, about 0.1 µs a call, is in every sample."""

    def __init__(self, sample_us: float = CPU_SAMPLE_US, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._sample_us = sample_us
        self._clock_ns = clock_ns

    def prepare(self, arm: Arm) -> Sampler:
        """Run every call once, then as often as shows how long one takes."""
        for call in arm.calls:
            call()
        count, taken_us = 1, 0.0
        while count < CPU_MAX_CALLS:
            taken_us = _CpuSampler(arm, count, self._clock_ns)() * count
            if taken_us >= self._sample_us / 2:
                break
            guess = int(count * self._sample_us / taken_us) if taken_us > 0 else 0
            count = min(max(2 * count, guess), CPU_MAX_CALLS)
        wanted = round(count * self._sample_us / taken_us) if taken_us > 0 else count
        return _CpuSampler(arm, min(max(wanted, 1), CPU_MAX_CALLS), self._clock_ns)


class _CpuSampler:
    overhead_us = 0.0

    def __init__(self, arm: Arm, calls: int, clock_ns: Callable[[], int]) -> None:
        self.calls = calls
        self._calls = cycle(arm.calls)
        self._clock_ns = clock_ns

    def __call__(self) -> float:
        chosen = list(islice(self._calls, self.calls))
        start = self._clock_ns()
        for call in chosen:
            call()
        return (self._clock_ns() - start) / 1000 / self.calls


class CudaStopwatch:
    """Times the replay of a CUDA graph that holds many calls, the input sets in turn, between two events.

    The device is kept busy by a spinning kernel while the host enqueues, so that the host's latency is not measured.
    What remains of the replay itself is measured once, on a graph with a single one-element kernel, and subtracted
    from every sample (``Timing.overhead_us``, about 2 µs of a sample of about 1,000): both arms of a
    comparison lose the same amount. The one-element kernel's own time is part of it, so a call is never reported longer
    than it is, and shorter by 2 µs / calls a sample at most.
    """

    def __init__(self, sample_us: float = CUDA_SAMPLE_US, max_calls: int = CUDA_MAX_CALLS) -> None:
        self._sample_us = sample_us
        self._max_calls = max_calls
        self._overhead_us: float | None = None

    @property
    def overhead_us(self) -> float:
        """Microseconds a replay takes that holds next to nothing."""
        if self._overhead_us is None:
            cell = torch.zeros(1, device="cuda")
            graph = _capture([partial(_touch, cell)])
            self._overhead_us = statistics.median(_replay_us(graph) for _ in range(50))
        return self._overhead_us

    def prepare(self, arm: Arm) -> Sampler:
        """Run every call once, capture one pass over the input sets, and from its time the graph that is sampled."""
        overhead = self.overhead_us
        for call in arm.calls:
            call()
        torch.cuda.synchronize()
        sets = arm.calls[: self._max_calls]
        graph, count = _capture(sets), len(sets)
        _replay_us(graph)
        pass_us = max(min(_replay_us(graph) for _ in range(3)) - overhead, 0.1)
        passes = max(1, min(round(self._sample_us / pass_us), self._max_calls // count))
        if passes > 1:
            graph, count = _capture(sets * passes), count * passes
        return _CudaSampler(graph, count, overhead)


class _CudaSampler:
    def __init__(self, graph: torch.cuda.CUDAGraph, calls: int, overhead_us: float) -> None:
        self.calls = calls
        self.overhead_us = overhead_us
        self._graph = graph

    def __call__(self) -> float:
        return max(_replay_us(self._graph) - self.overhead_us, 0.0) / self.calls


def _touch(cell: torch.Tensor) -> None:
    cell.add_(1)


def _capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    # A first run on a side stream, as torch asks for: libraries set themselves up outside the capture.
    side = _cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
    _cuda._sleep(_SPIN_CYCLES)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000
