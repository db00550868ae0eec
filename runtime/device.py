"""What a kernel runs on, as data: names and sizes that launch plans, preludes, records and floors read."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kb.contract import DEVICE_SYMBOLS
from kb.dtype import Target
from kb.features import block_shared_bytes
from runtime.clocks import driver_version
from runtime.errors import MissingToolError

# Multiprocessors of an architecture's usual data-centre part, by compute capability.
_TYPICAL_SMS = {80: 108, 86: 84, 87: 16, 89: 142, 90: 132, 100: 148, 103: 160, 120: 188, 121: 48}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device.

    ``arch`` is ``sm_90`` or a processor architecture; ``num_sms`` multiprocessors, for ``cpu`` the threads OpenMP will
    use; ``cache_bytes`` the last level of cache; ``shared_bytes`` what one block may have at most (0 for ``cpu``);
    ``index`` the CUDA ordinal, None when the device is assumed and not there; ``uuid`` names the
    device itself, whatever the ordinal, and is empty for ``cpu`` and where torch does not tell.
    """

    target: Target
    name: str
    arch: str
    num_sms: int
    cache_bytes: int
    memory_bytes: int
    shared_bytes: int = 0
    index: int | None = None
    driver: str = ""
    uuid: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def symbols(self) -> Mapping[str, int]:
        """Values of ``kb.contract.DEVICE_SYMBOLS``, for launch expressions and the prelude."""
        return {name: getattr(self, name) for name in DEVICE_SYMBOLS}

    @property
    def capability(self) -> int:
        """90 for ``sm_90``; 0 for a processor."""
        return int(self.arch[3:]) if self.arch.startswith("sm_") else 0


def device_for(target: Target) -> DeviceInfo:
    """The device kernels of ``target`` run on here. Raises MissingToolError when there is none."""
    return cuda_device() if target is Target.CUDA else cpu_device()


def has_cuda() -> bool:
    """Whether torch sees a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def cuda_device(index: int | None = None) -> DeviceInfo:
    """The CUDA device ``index``, or torch's current one. Raises MissingToolError without one."""
    if not has_cuda():
        raise MissingToolError("no CUDA device: torch sees none (nvidia-smi shows whether the driver does)")
    import torch

    ordinal = torch.cuda.current_device() if index is None else index
    return _cuda_device(ordinal)


@lru_cache(maxsize=16)
def _cuda_device(index: int) -> DeviceInfo:
    import torch

    found = torch.cuda.get_device_properties(index)
    capability = found.major * 10 + found.minor
    return DeviceInfo(
        target=Target.CUDA,
        name=found.name,
        arch=f"sm_{capability}",
        num_sms=found.multi_processor_count,
        cache_bytes=int(getattr(found, "L2_cache_size", 0)) or 50 << 20,
        memory_bytes=found.total_memory,
        shared_bytes=int(getattr(found, "shared_memory_per_block_optin", 0)) or block_shared_bytes(capability),
        index=index,
        driver=driver_version(),
        uuid=str(getattr(found, "uuid", "")),
        versions={"torch": torch.__version__, "cuda": torch.version.cuda or ""},
    )


def assumed_cuda_device(arch: str, num_sms: int | None = None) -> DeviceInfo:
    """A stand-in for compiling where no GPU is: the sizes of ``arch``'s usual data-centre part.

    Raises ValueError for a name that is not a compute capability such as ``sm_90``.
    """
    if not (arch.startswith("sm_") and arch[3:].isdigit()):
        raise ValueError(f"'{arch}' is not a compute capability such as sm_90")
    capability = int(arch[3:])
    return DeviceInfo(
        target=Target.CUDA,
        name=f"assumed {arch}",
        arch=arch,
        num_sms=num_sms or _TYPICAL_SMS.get(capability, 100),
        cache_bytes=50 << 20,
        memory_bytes=0,
        shared_bytes=block_shared_bytes(capability),
    )


def cpu_device(threads: int | None = None) -> DeviceInfo:
    """This machine's processor with ``threads`` threads, or as many as OpenMP will use."""
    return DeviceInfo(
        target=Target.CPU,
        name=_processor_name(),
        arch=platform.machine(),
        num_sms=threads or _threads(),
        cache_bytes=_last_level_cache(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        driver=f"{platform.system()} {platform.release()}",
        versions={"torch": str(sys.modules["torch"].__version__)} if "torch" in sys.modules else {},
    )


def _threads() -> int:
    """What torch uses where torch is loaded, else OMP_NUM_THREADS, else the cores this process may run on."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdigit() and int(asked) > 0 else len(os.sched_getaffinity(0))


@lru_cache(maxsize=1)
def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def _last_level_cache() -> int:
    """Bytes of the largest cache cpu0 reports; 32 MiB where it reports none."""
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        largest = max(largest, int(digits) * unit if digits.isdigit() else 0)
    return largest or 32 << 20
