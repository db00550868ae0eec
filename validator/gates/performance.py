"""The performance gate: as fast as the strongest library path, not faster than memory, right in every timed call."""

from __future__ import annotations

from typing import ClassVar

from kb.dtype import DType, Target
from kb.manifest import Comparison, Finding, GateName, GateResult, ShapeTiming
from runtime.bandwidth import Bandwidth, measure_bandwidth
from runtime.device import DeviceInfo
from validator.gates.context import Context, describe, passed_or_failed
from validator.performance.verdict import performance_findings
from validator.shapes import Shape, held_timed

_ATTEMPTS = 2
_measured: dict[str, Bandwidth] = {}


class PerformanceGate:
    """Each performance shape of the contract in the first storage type, interleaved with all library paths present."""

    name: ClassVar[GateName] = GateName.PERFORMANCE
    needs_run: ClassVar[bool] = True

    def run(self, context: Context) -> GateResult:
        bandwidth = bandwidth_of(context.device)
        shapes = timed_shapes(context)
        storage = context.storages[0]
        findings: list[Finding] = []
        timings: list[ShapeTiming] = []
        for i, shape in enumerate(shapes):
            context.progress(self.name, describe(shape, storage), i / len(shapes))
            timing, wrong = _time(context, shape, storage, bandwidth.best_gbps)
            for _ in range(_ATTEMPTS):
                if timing is None or timing.comparison is not Comparison.IMPOSSIBLE:
                    break
                # Perhaps it was the bandwidth that was measured beside a busy neighbour: both again.
                bandwidth = bandwidth_of(context.device, again=True)
                timing, wrong = _time(context, shape, storage, bandwidth.best_gbps)
            findings += wrong
            if timing is not None:
                timings.append(timing)
            if wrong:
                break
        context.timings.extend(timings)
        judged, variants = performance_findings(context.contract, timings)
        if not findings:
            findings = judged
        return passed_or_failed(
            self.name,
            findings,
            variants=variants,
            bandwidth_gbps=dict(bandwidth.methods),
            floor=context.contract.performance_floor,
        )


def timed_shapes(context: Context) -> list[Shape]:
    """The contract's performance shapes, or those asked for; a quick judgement takes the one that moves least."""
    if context.options.dims is not None:
        return [Shape(dict(context.options.dims))]
    if context.options.at is not None and not context.options.timed:
        shapes = held_timed(context.contract, context.options.at)
    else:
        shapes = [Shape(dict(dims)) for dims in context.options.timed or context.contract.sweep.performance]
    if context.options.quick:
        return [min(shapes, key=lambda s: context.contract.bytes_moved(s.dims, DType.BFLOAT16))]
    return shapes


def bandwidth_of(device: DeviceInfo, *, again: bool = False) -> Bandwidth:
    """Bandwidth of the device, measured once a process; ``again``: once more, the better of both by method."""
    known = _measured.get(device.name)
    if known is None or again:
        now = measure_bandwidth(device)
        if known is not None:
            now = Bandwidth({n: max(v, known.methods.get(n, 0.0)) for n, v in now.methods.items()})
        _measured[device.name] = now
    return _measured[device.name]


def _time(
    context: Context, shape: Shape, storage: DType, bandwidth_gbps: float
) -> tuple[ShapeTiming | None, list[Finding]]:
    seconds = min(1.0, context.options.timing_seconds) if context.options.quick else context.options.timing_seconds
    if context.target is Target.CUDA:
        from validator.performance.device import time_on_gpu

        return time_on_gpu(context, shape, storage, bandwidth_gbps, seconds)
    from validator.performance.host import time_on_host

    return time_on_host(context, shape, storage, bandwidth_gbps, seconds)
