"""A cost model: bytes that move, operations, and how much of the device the launch fills.

It orders plans so that the judge times the promising ones first; it decides nothing. Times are microseconds of a
roofline whose roofs are lowered by what the parameters leave unused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemmParameters,
    GemvParameters,
    Parameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.sizes import product, value
from generator.kernel_templates.specs import ElementwiseSpec, GemmSpec, Reduce, RowSpec, Spec
from generator.plan.hardware import Hardware
from kb.dtype import DType, Target

# A pass over a row that was just read finds it in the cache; it costs this share of reading it from memory.
_CACHED = 0.25
# Share of the bandwidth that loads of one element a thread reach, against 16 bytes a thread.
_NARROW_LOADS = 0.55
# Share of a row kernel's time that each doubling of the group beyond a warp adds in barriers.
_BARRIER = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """``occupancy``: share of the device's units that have work, waves that do not fill it counted, 0 to 1."""

    bytes: int
    flops: int
    occupancy: float
    microseconds: float


def cost_of(
    spec: Spec,
    parameters: Parameters,
    hardware: Hardware,
    dims: Mapping[str, int],
    *,
    least_bytes: int,
    storage: DType,
) -> Cost:
    """Cost of one call. ``least_bytes``: what must move at the least, each input read and each output written once."""
    match spec, parameters:
        case GemmSpec(), _:
            moved, flops, occupancy, peak = _product(spec, parameters, hardware, dims, least_bytes, storage)
        case RowSpec(), RowParameters():
            moved, flops, occupancy, peak = _rows(spec, parameters, hardware, dims, least_bytes)
        case ElementwiseSpec(), ElementwiseParameters():
            points = _count(spec.shape, dims)
            flops, peak = points * max(1, len(spec.steps)), hardware.gflops
            moved, occupancy = float(least_bytes), _threads(points / parameters.vector, hardware)
        case _:
            moved, flops, occupancy, peak = float(least_bytes), 0, 1.0, hardware.gflops
    share = max(occupancy, 1e-3)
    bandwidth = hardware.bandwidth_gbps * _load_share(parameters, storage, hardware) * min(1.0, 2 * share)
    memory_us = moved / (bandwidth * 1e3)
    compute_us = flops / (peak * share * 1e3)
    return Cost(round(moved), flops, round(occupancy, 4), round(hardware.launch_us + max(memory_us, compute_us), 3))


def _product(
    spec: GemmSpec,
    parameters: Parameters,
    hardware: Hardware,
    dims: Mapping[str, int],
    least_bytes: int,
    storage: DType,
) -> tuple[float, int, float, float]:
    m, n, k = (_count((size,), dims) for size in (spec.m, spec.n, spec.k))
    n *= len(spec.parts)
    item = spec.dtype.bind(storage).itemsize
    x, weight, flops = m * k * item, n * k * item, 2 * m * n * k
    again: float
    match parameters:
        case GemvParameters() if hardware.target is Target.CPU:
            tasks = math.ceil(n / parameters.rows)
            return least_bytes + _CACHED * x * tasks, flops, _waves(tasks, hardware.units), hardware.gflops
        case GemvParameters():
            again = math.ceil(m / parameters.tokens) - 1
            warps = n / parameters.rows * max(1, parameters.split or 4)
            return least_bytes + again * weight, flops, _threads(32 * warps, hardware), hardware.gflops
        case TensorGemmParameters():
            tile_m = parameters.tile_m or min(64, max(8, m))
            blocks = math.ceil(m / tile_m) * math.ceil(n / parameters.tile_n)
            again = _CACHED * (weight * (math.ceil(m / tile_m) - 1) + x * (blocks - 1))
            occupancy = _waves(blocks * parameters.split, hardware.units)
            return least_bytes + again, flops, occupancy, hardware.tensor_gflops
        case GemmParameters():
            blocks = math.ceil(m / parameters.tile_m) * math.ceil(n / parameters.tile_n)
            again = _CACHED * (weight * (math.ceil(m / parameters.tile_m) - 1) + x * (blocks - 1))
            return least_bytes + again, flops, _waves(blocks, hardware.units), hardware.gflops
    return float(least_bytes), flops, 1.0, hardware.gflops


def _rows(
    spec: RowSpec, parameters: RowParameters, hardware: Hardware, dims: Mapping[str, int], least_bytes: int
) -> tuple[float, int, float, float]:
    points = _count(spec.shape, dims)
    rows = points // max(1, _count(spec.shape[-1:], dims))
    passes = sum(isinstance(p, Reduce) for p in spec.phases)
    moved = least_bytes * (1.0 if parameters.keep else 1.0 + _CACHED * passes)
    if hardware.target is Target.CPU:
        occupancy = _waves(rows, hardware.units)
    else:
        # Threads beyond the row's packs have nothing to do and still wait at every barrier.
        busy = min(parameters.group, math.ceil(points / max(1, rows) / parameters.vector))
        occupancy = _threads(rows * busy, hardware) * (1.0 - _BARRIER * math.log2(parameters.group / 32))
    return moved, points * max(1, len(spec.phases)), occupancy, hardware.gflops


def _load_share(parameters: Parameters, storage: DType, hardware: Hardware) -> float:
    """Share of the bandwidth that loads of this width reach."""
    if hardware.target is Target.CPU or not isinstance(parameters, ElementwiseParameters | RowParameters):
        return 1.0
    wide = min(1.0, parameters.vector * storage.itemsize / 16)
    return _NARROW_LOADS + (1 - _NARROW_LOADS) * wide


def _threads(threads: float, hardware: Hardware) -> float:
    """A quarter of the resident threads saturates memory; fewer leave it waiting."""
    if hardware.target is Target.CPU:
        return 1.0
    return min(1.0, threads / (hardware.units * hardware.threads / 4))


def _waves(tasks: float, units: int) -> float:
    """Share of the units that work, on average over all waves."""
    return tasks / (math.ceil(tasks / units) * units) if tasks else 0.0


def _count(shape: tuple[int | str, ...], dims: Mapping[str, int]) -> int:
    found = value(product(shape), dims)
    if found is None:
        raise ValueError(f"the dims do not decide {' * '.join(map(str, shape))}")
    return found
