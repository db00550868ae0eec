"""How fast this device's memory is, measured: the ceiling that floors and shares of bandwidth are stated against."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kb.candidate import ResolvedLaunch
from kb.dtype import Target
from runtime.binding import CValue
from runtime.compile_cache import CompileCache
from runtime.compile_cpu import compile_cpu
from runtime.compile_cuda import compile_cuda
from runtime.device import DeviceInfo
from runtime.errors import RuntimeFailure
from runtime.launch_cpu import CpuModule
from runtime.launch_cuda import CudaModule

_REPEATS = 9
_CUDA_BYTES = 2 << 30
_CPU_BYTES = 256 << 20
_UNROLL = 8
_THREADS = 256

_READ_CUDA = f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) stream_read(const uint4* __restrict__ data, long long vectors,
                                                                    unsigned* __restrict__ sink) {{
  const long long stride = (long long)gridDim.x * {_THREADS};
  unsigned mixed = 0;
  long long i = (long long)blockIdx.x * {_THREADS} + threadIdx.x;
  for (; i + {_UNROLL - 1} * stride < vectors; i += {_UNROLL} * stride) {{
    uint4 v[{_UNROLL}];
    #pragma unroll
    for (int k = 0; k < {_UNROLL}; ++k) v[k] = __ldcs(data + i + k * stride);
    #pragma unroll
    for (int k = 0; k < {_UNROLL}; ++k) mixed ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }}
  for (; i < vectors; i += stride) mixed ^= data[i].x;
  if (mixed == 0x9e3779b9u) *sink = mixed;  // never true for random data in practice, and the compiler cannot know
}}
"""

_READ_CPU = """
#include <cstdint>
extern "C" void stream_read(const std::uint64_t* __restrict__ data, long long words, std::uint64_t* __restrict__ sink) {
  std::uint64_t mixed = 0;
  #pragma omp parallel for simd schedule(static) reduction(^ : mixed)
  for (long long i = 0; i < words; ++i) mixed ^= data[i];
  *sink = mixed;
}
"""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """GB/s by method; ``copy`` counts bytes read and bytes written."""

    methods: Mapping[str, float]

    @property
    def best_gbps(self) -> float:
        """The fastest method: what a floor is computed with, so that no honest kernel is called impossible."""
        return max(self.methods.values())

    @property
    def read_gbps(self) -> float:
        """The fastest of the methods that only read."""
        return max(v for name, v in self.methods.items() if name != "copy")


def measure_bandwidth(device: DeviceInfo, cache: CompileCache | None = None) -> Bandwidth:
    """Read and copy a buffer many times the cache. A method that cannot run here is left out; torch's always can."""
    cache = cache or CompileCache()
    return _measure_cuda(device, cache) if device.target is Target.CUDA else _measure_cpu(device, cache)


def _measure_cuda(device: DeviceInfo, cache: CompileCache) -> Bandwidth:
    where = torch.device("cuda", device.index or 0)
    size = min(max(_CUDA_BYTES, 16 * device.cache_bytes), torch.cuda.mem_get_info(where)[0] // 4) // 4096 * 4096
    data = torch.empty(size // 4, dtype=torch.int32, device=where).random_()
    target = torch.empty_like(data)
    floats = data.view(torch.bfloat16)
    found = {
        "torch.sum": size / _event_us(lambda: torch.sum(floats, dtype=torch.float32)) / 1e3,
        "copy": 2 * size / _event_us(lambda: target.copy_(data)) / 1e3,
    }
    for blocks in (4, 8, 16):
        try:
            call = _cuda_reader(data, device, cache, blocks * device.num_sms)
        except RuntimeFailure:
            break
        found[f"stream_read x{blocks}"] = size / _event_us(call) / 1e3
    return Bandwidth(found)


def _cuda_reader(data: torch.Tensor, device: DeviceInfo, cache: CompileCache, blocks: int) -> Callable[[], None]:
    image = compile_cuda(_READ_CUDA, device.arch, cache)
    module = CudaModule(image, [_launch((blocks, 1, 1), (_THREADS, 1, 1))], device)
    sink = torch.zeros(1, dtype=torch.int32, device=data.device)
    return module.bind(_reader_values(data, sink, 16), {"data": data, "sink": sink}, None)


def _measure_cpu(device: DeviceInfo, cache: CompileCache) -> Bandwidth:
    size = min(max(_CPU_BYTES, 6 * device.cache_bytes), device.memory_bytes // 8) // 4096 * 4096
    data = torch.empty(size // 8, dtype=torch.int64).random_()
    target = torch.empty_like(data)
    found = {
        "torch.sum": size / _host_us(lambda: torch.sum(data)) / 1e3,
        "copy": 2 * size / _host_us(lambda: target.copy_(data)) / 1e3,
    }
    try:
        module = CpuModule(compile_cpu(_READ_CPU, cache), [_launch((1, 1, 1), (1, 1, 1))], device.num_sms)
    except RuntimeFailure:
        return Bandwidth(found)
    sink = torch.zeros(1, dtype=torch.int64)
    call = module.bind(_reader_values(data, sink, 8), {"data": data, "sink": sink}, None)
    return Bandwidth({**found, "stream_read": size / _host_us(call) / 1e3})


def _reader_values(data: torch.Tensor, sink: torch.Tensor, bytes_a_load: int) -> tuple[CValue, ...]:
    count = data.numel() * data.element_size() // bytes_a_load
    return ctypes.c_void_p(data.data_ptr()), ctypes.c_int64(count), ctypes.c_void_p(sink.data_ptr())


def _launch(grid: tuple[int, int, int], block: tuple[int, int, int]) -> ResolvedLaunch:
    return ResolvedLaunch(entry="stream_read", grid=grid, block=block)


def _event_us(call: Callable[[], object]) -> float:
    """The fastest repeat: a ceiling is what the memory can do, not what it did beside a neighbour."""
    call()
    event: Any = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(_REPEATS)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return min(float(start.elapsed_time(end)) for start, end in pairs) * 1000


def _host_us(call: Callable[[], object]) -> float:
    call()
    taken = []
    for _ in range(_REPEATS):
        start = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return min(taken)
