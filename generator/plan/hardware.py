"""The few numbers of a device that the cost model reads."""

from __future__ import annotations

from dataclasses import dataclass

from kb.dtype import Target
from runtime.device import DeviceInfo

# A GPU's by architecture, from the vendor's data sheets: GB/s, float32 GFLOP/s, tensor-core GFLOP/s (dense, 16 bit).
_GPUS = {"sm_80": (2_039.0, 19_500.0, 312_000.0), "sm_90": (4_490.0, 66_900.0, 989_000.0)}
_OTHER_GPU = (900.0, 20_000.0, 120_000.0)
# One core of a server processor of the last ten years.
_CORE_GFLOPS, _CORE_GBPS = 30.0, 8.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """``units``: multiprocessors or cores. ``threads``: resident threads a unit. ``launch_us``: one empty launch."""

    target: Target
    arch: str
    units: int
    threads: int
    bandwidth_gbps: float
    gflops: float
    tensor_gflops: float
    launch_us: float


def hardware_of(device: DeviceInfo) -> Hardware:
    """What the cost model needs to know of ``device``. The order it gives is what counts, not its microseconds."""
    if device.target is Target.CPU:
        cores = max(1, device.num_sms)
        return Hardware(
            device.target, device.arch, cores, 1, cores * _CORE_GBPS, cores * _CORE_GFLOPS, 0.0, launch_us=2.0
        )
    bandwidth, plain, tensor = _GPUS.get(device.arch, _OTHER_GPU)
    return Hardware(device.target, device.arch, device.num_sms, 2048, bandwidth, plain, tensor, launch_us=2.0)
