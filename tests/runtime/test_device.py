from __future__ import annotations

import os
import sys

import pytest

from kb.contract import DEVICE_SYMBOLS
from kb.dtype import Target
from runtime import clocks
from runtime.bandwidth import Bandwidth, measure_bandwidth
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device, cpu_device, cuda_device, device_for, has_cuda
from runtime.errors import MissingToolError


def test_the_processor_has_threads_caches_and_memory() -> None:
    device = cpu_device()
    assert device.target is Target.CPU
    assert device.arch in ("x86_64", "aarch64", "arm64")
    assert device.num_sms >= 1
    assert device.cache_bytes >= 1 << 18
    assert device.memory_bytes > 1 << 28
    assert device.capability == 0


def test_its_threads_are_torchs_and_without_torch_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert cpu_device().num_sms == torch.get_num_threads()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert cpu_device().num_sms == 7
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cpu_device().num_sms == len(os.sched_getaffinity(0))
    assert cpu_device(threads=5).num_sms == 5


def test_every_device_symbol_of_the_contracts_has_a_value() -> None:
    for device in (cpu_device(), assumed_cuda_device("sm_90")):
        assert set(device.symbols) == set(DEVICE_SYMBOLS)
        assert all(value >= 1 for value in device.symbols.values())


def test_an_assumed_device_has_the_sizes_of_its_architecture() -> None:
    hopper, ampere = assumed_cuda_device("sm_90"), assumed_cuda_device("sm_80", num_sms=42)
    assert (hopper.num_sms, hopper.shared_bytes, hopper.capability, hopper.index) == (132, 232_448, 90, None)
    assert (ampere.num_sms, ampere.shared_bytes, ampere.capability) == (42, 166_912, 80)
    with pytest.raises(ValueError, match="not a compute capability"):
        assumed_cuda_device("x86_64")


@pytest.mark.skipif(has_cuda(), reason="this machine has a GPU")
def test_without_a_gpu_the_message_says_how_to_look() -> None:
    with pytest.raises(MissingToolError, match="nvidia-smi"):
        cuda_device()
    with pytest.raises(MissingToolError):
        device_for(Target.CUDA)


@pytest.mark.gpu
def test_the_gpu_is_described() -> None:
    device = device_for(Target.CUDA)
    assert device.arch.startswith("sm_")
    assert device.num_sms > 1
    assert device.cache_bytes > 1 << 20
    assert device.driver
    assert 100 < clocks.read_clocks(Target.CUDA, device.uuid)["sm_mhz"] < 10_000


def test_clocks_are_in_megahertz_where_any_are_reported() -> None:
    assert all(100 < mhz < 10_000 for mhz in clocks.read_clocks(Target.CPU).values())


def test_gpu_clocks_come_from_nvidia_smi_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_nvml", lambda: None)
    asked = []
    monkeypatch.setattr(clocks, "_smi", lambda fields, device: asked.append(device) or ["1980", "3201", "[N/A]"])
    assert clocks.read_clocks(Target.CUDA) == {"sm_mhz": 1980.0, "memory_mhz": 3201.0}
    clocks.read_clocks(Target.CUDA, "57b95ff6-041d")
    assert asked == ["0", "GPU-57b95ff6-041d"]
    monkeypatch.setattr(clocks, "_smi", lambda fields, device: [])
    assert clocks.read_clocks(Target.CUDA) == {}
    assert clocks.driver_version() == ""


def test_bandwidth_is_measured_by_several_methods_and_the_best_counts(
    monkeypatch: pytest.MonkeyPatch, images: CompileCache
) -> None:
    monkeypatch.setattr("runtime.bandwidth._CPU_BYTES", 1 << 20)
    monkeypatch.setattr("runtime.bandwidth._REPEATS", 2)
    from dataclasses import replace

    found = measure_bandwidth(replace(cpu_device(), cache_bytes=1 << 16), images)
    assert set(found.methods) == {"torch.sum", "copy", "stream_read"}
    assert found.best_gbps == max(found.methods.values()) > 0


def test_a_copy_is_no_read_but_may_be_the_best() -> None:
    found = Bandwidth({"copy": 30.0, "torch.sum": 10.0, "stream_read": 20.0})
    assert (found.read_gbps, found.best_gbps) == (20.0, 30.0)
