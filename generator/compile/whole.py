"""The module with kernels against the module without: does it give the same, and is it not slower?

Kernels that win alone may lose together: a call through Python costs what a small kernel saves. So the last word has
the whole, measured in one interleaved run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from generator.compile.module import CompiledModule
from generator.compile.partly import PartlyCompiled
from generator.compile.subject import Subject
from kb.dtype import Target
from kb.manifest import Comparison
from runtime.timing import Arm, Effort, Sampler, Timing, compare, time_interleaved

# Two runs of one model that round at other places differ by so many eps of the type, root mean square, before a
# kernel is under suspicion. The kernels were judged one by one; this catches what was put together wrongly.
_ROUNDINGS = {torch.bfloat16: 2.0**-7 * 8, torch.float16: 2.0**-10 * 8, torch.float32: 2.0**-23 * 512}


Compiled = CompiledModule | PartlyCompiled


@dataclass(frozen=True, slots=True)
class Whole:
    """``difference``: the largest relative root-mean-square difference of an output, None where shapes differ.

    Times in microseconds a call; empty without timing. ``kernels``: whether the callable uses them.
    """

    same: bool
    difference: float | None
    worst: str
    module_us: float | None
    compiled_us: float | None
    ratio: float | None
    comparison: Comparison | None
    kernels: bool
    reason: str


def compare_whole(compiled: Compiled, subject: Subject, target: Target, *, seconds: float | None) -> Whole:
    """Run both on the example call; ``seconds`` bounds the timing, None leaves it out."""
    with torch.no_grad():
        wanted = subject.module(*_copied(subject.args), **_copied(dict(subject.kwargs)))
    got = compiled(*_copied(subject.args), **_copied(dict(subject.kwargs)))
    difference, worst, same = _difference(got, wanted)
    if not same:
        reason = f"the callable does not give what the module gives ({worst})"
        return Whole(False, difference, worst, None, None, None, None, False, reason)
    if compiled.fallbacks.total:
        first = next(iter(compiled.fallbacks.reasons.values()))
        return Whole(True, difference, worst, None, None, None, None, True, f"fallbacks at the example call: {first}")
    if not compiled.regions:
        return Whole(True, difference, worst, None, None, None, None, False, "no kernel was kept")
    if seconds is None:
        return Whole(True, difference, worst, None, None, None, None, True, "not timed")
    timings = _timed(compiled, subject, target, seconds)
    compared = compare(timings["compiled"], timings["module"])
    slower = compared.comparison is Comparison.SLOWER
    reason = "the module is faster without kernels" if slower else "not slower than the module"
    return Whole(
        True,
        difference,
        worst,
        timings["module"].median_us,
        timings["compiled"].median_us,
        compared.ratio,
        compared.comparison,
        not slower,
        reason,
    )


def _timed(compiled: Compiled, subject: Subject, target: Target, seconds: float) -> Mapping[str, Timing]:
    args, kwargs = subject.args, dict(subject.kwargs)

    def module() -> object:
        with torch.no_grad():
            return subject.module(*args, **kwargs)

    arms = {"module": Arm((module,)), "compiled": Arm((lambda: compiled(*args, **kwargs),))}
    return time_interleaved(arms, _HostStopwatch(target), Effort(0.01, 7, 60, seconds))


class _HostStopwatch:
    """A call from its start to its end on the host, the device's work included."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def prepare(self, arm: Arm) -> Sampler:
        for call in arm.calls:
            call()
        return _HostSampler(arm.calls[0], self._target is Target.CUDA and torch.cuda.is_available())


class _HostSampler:
    calls = 1
    overhead_us = 0.0

    def __init__(self, call: Callable[[], object], device: bool) -> None:
        self._call, self._device = call, device

    def __call__(self) -> float:
        if self._device:
            torch.cuda.synchronize()
        started = time.perf_counter_ns()
        self._call()
        if self._device:
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - started) / 1e3


def _copied(tree: Any) -> Any:
    """Calls may overwrite their arguments; the example stays as it is."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def _difference(got: Any, wanted: Any) -> tuple[float | None, str, bool]:
    """(largest relative difference, where and what, whether they are the same result)."""
    a, spec_a = torch.utils._pytree.tree_flatten(got)
    b, spec_b = torch.utils._pytree.tree_flatten(wanted)
    if len(a) != len(b) or spec_a != spec_b:
        return None, "another structure", False
    largest, worst, same = 0.0, "", True
    for number, (one, other) in enumerate(zip(a, b, strict=True)):
        if not isinstance(other, torch.Tensor):
            if one != other:
                return None, f"output {number}: {one!r} where {other!r} is right", False
            continue
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype is not other.dtype:
            return None, f"output {number}: another shape or type", False
        if not other.is_floating_point():
            if not torch.equal(one, other):
                return None, f"output {number}: other integers", False
            continue
        if not torch.equal(torch.isfinite(one), torch.isfinite(other)):
            return None, f"output {number}: not finite where the module's is, or the other way round", False
        wide = other.double().nan_to_num(0, 0, 0)
        size = float(wide.square().mean().sqrt()) or 1.0
        relative = float((one.double().nan_to_num(0, 0, 0) - wide).square().mean().sqrt()) / size
        if relative >= largest:
            largest, worst = relative, f"output {number}: relative difference {relative:.2e}"
        same &= relative <= _ROUNDINGS.get(other.dtype, 1e-12)
    return largest, worst, same


__all__ = ["Whole", "compare_whole"]
