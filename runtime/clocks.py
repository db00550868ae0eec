"""Clocks and driver as the machine reports them. Read, never set: a lock would outlive the process that took it."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kb.dtype import Target


def read_clocks(target: Target, uuid: str = "") -> Mapping[str, float]:
    """Clocks in MHz (and the GPU's temperature in °C); empty where nothing reports any.

    ``uuid``: which GPU, as ``DeviceInfo.uuid`` says; the driver's first where it is empty. A process may see the
    devices in another order than the driver, so an ordinal would not do. ``cuda``: ``sm_mhz``, ``memory_mhz``,
    ``temperature_c``. ``cpu``: ``cpu_mhz``, the mean over cores.
    """
    return _gpu_clocks(uuid) if target is Target.CUDA else _cpu_clocks()


def driver_version() -> str:
    """The NVIDIA driver's version, empty without one."""
    nvml = _nvml()
    if nvml is not None:
        version = nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    return next(iter(_smi("driver_version", "0")), "")


def _gpu_clocks(uuid: str) -> dict[str, float]:
    nvml = _nvml()
    if nvml is None:
        names = ("sm_mhz", "memory_mhz", "temperature_c")
        values = _smi("clocks.sm,clocks.mem,temperature.gpu", f"GPU-{uuid}" if uuid else "0")
        return {name: float(v) for name, v in zip(names, values, strict=False) if v.replace(".", "", 1).isdigit()}
    found = {}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
        found["sm_mhz"] = float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        found["memory_mhz"] = float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        found["temperature_c"] = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError:
        return found  # a virtual GPU may report some and refuse others
    return found


def _cpu_clocks() -> dict[str, float]:
    cores = [int(p.read_text(encoding="utf-8")) / 1000 for p in sorted(Path("/sys/devices/system/cpu").glob(_SCALING))]
    if not cores:
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        cores = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return {"cpu_mhz": sum(cores) / len(cores)} if cores else {}


_SCALING = "cpu[0-9]*/cpufreq/scaling_cur_freq"


@lru_cache(maxsize=1)
def _nvml() -> Any:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, no driver, or a library that does not fit: nvidia-smi is asked instead
        return None
    return nvml


def _smi(fields: str, device: str) -> list[str]:
    command = ["nvidia-smi", f"--id={device}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [v.strip() for v in asked.stdout.split(",")] if asked.returncode == 0 else []
