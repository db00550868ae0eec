"""One small kernel for every kind of launch, all of contract residual_rmsnorm, so that one reference judges them.

Plain and correct rather than fast: they show that the loading path does what a launch plan asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kb.candidate import Candidate, LaunchPlan
from kb.dtype import DType, Target

CONTRACT = "residual_rmsnorm"
_ARGUMENTS = """(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight, T* __restrict__ out,
    float eps, void* __restrict__ workspace)"""

_BLOCK_SUM = """
__device__ float block_sum(float value) {
  __shared__ float part[32];
  for (int lane = 16; lane > 0; lane >>= 1) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += part[warp];
  __syncthreads();
  return total;
}
__device__ float add_rows(const T* x, T* residual, int row, int begin, int end) {
  float sum = 0.f;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) {
    T s = x[row * hidden_size + i];
    if (has_residual) {
      s = T(float(s) + float(residual[row * hidden_size + i]));
      residual[row * hidden_size + i] = s;
    }
    sum += float(s) * float(s);
  }
  return sum;
}
__device__ void write_rows(const T* x, const T* residual, const T* weight, T* out, float scale, int row, int begin,
                           int end) {
  const T* from = has_residual ? residual : x;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x)
    out[row * hidden_size + i] = T(float(T(float(from[row * hidden_size + i]) * scale)) * float(weight[i]));
}
__device__ float scale_of(float sum, float eps) { return 1.f / sqrtf(sum / hidden_size + eps); }
"""

_PLAIN = f"""{_BLOCK_SUM}
extern "C" __global__ void plain{_ARGUMENTS} {{
  const int row = blockIdx.x;
  const float sum = block_sum(add_rows(x, residual, row, 0, hidden_size));
  write_rows(x, residual, weight, out, scale_of(sum, eps), row, 0, hidden_size);
}}
"""

_SHARED = f"""{_BLOCK_SUM}
extern "C" __global__ void in_shared{_ARGUMENTS} {{
  extern __shared__ __align__(16) float kept[];
  const int row = blockIdx.x;
  float sum = add_rows(x, residual, row, 0, hidden_size);
  for (int i = threadIdx.x; i < hidden_size; i += blockDim.x)
    kept[i] = float(has_residual ? residual[row * hidden_size + i] : x[row * hidden_size + i]);
  const float scale = scale_of(block_sum(sum), eps);
  for (int i = threadIdx.x; i < hidden_size; i += blockDim.x)
    out[row * hidden_size + i] = T(float(T(kept[i] * scale)) * float(weight[i]));
}}
"""

_CLUSTER = f"""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
{_BLOCK_SUM}
extern "C" __global__ void clustered{_ARGUMENTS} {{
  __shared__ float mine;
  cg::cluster_group cluster = cg::this_cluster();
  const int blocks = cluster.num_blocks(), rank = cluster.block_rank(), row = blockIdx.x / blocks;
  const int chunk = (hidden_size + blocks - 1) / blocks, begin = rank * chunk;
  const int end = begin + chunk < hidden_size ? begin + chunk : hidden_size;
  const float sum = block_sum(add_rows(x, residual, row, begin, end));
  if (threadIdx.x == 0) mine = sum;
  cluster.sync();
  float total = 0.f;
  for (int other = 0; other < blocks; ++other) total += *cluster.map_shared_rank(&mine, other);
  cluster.sync();
  write_rows(x, residual, weight, out, scale_of(total, eps), row, begin, end);
}}
"""

_COOPERATIVE = f"""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
{_BLOCK_SUM}
extern "C" __global__ void together{_ARGUMENTS} {{
  float* part = static_cast<float*>(workspace);
  const int chunk = (hidden_size + gridDim.x - 1) / gridDim.x, first = blockIdx.x * chunk;
  const int begin = first < hidden_size ? first : hidden_size;
  const int end = begin + chunk < hidden_size ? begin + chunk : hidden_size;
  for (int row = 0; row < num_tokens; ++row) {{
    const float sum = block_sum(add_rows(x, residual, row, begin, end));
    if (threadIdx.x == 0) part[row * gridDim.x + blockIdx.x] = sum;
  }}
  cg::this_grid().sync();
  for (int row = 0; row < num_tokens; ++row) {{
    float total = 0.f;
    for (int block = 0; block < gridDim.x; ++block) total += part[row * gridDim.x + block];
    write_rows(x, residual, weight, out, scale_of(total, eps), row, begin, end);
  }}
}}
"""

_DEPENDENT = f"""{_BLOCK_SUM}
__device__ void wait_for_previous() {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}}
__device__ void let_next_start() {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}}
extern "C" __global__ void scales{_ARGUMENTS} {{
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  const float sum = block_sum(add_rows(x, residual, row, 0, hidden_size));
  if (threadIdx.x == 0) static_cast<float*>(workspace)[row] = scale_of(sum, eps);
}}
extern "C" __global__ void rows{_ARGUMENTS} {{
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  write_rows(x, residual, weight, out, static_cast<const float*>(workspace)[row], row, 0, hidden_size);
}}
"""

_LAST_BLOCK = f"""{_BLOCK_SUM}
extern "C" __global__ void last_block{_ARGUMENTS} {{
  __shared__ bool last;
  float* part = static_cast<float*>(workspace);
  unsigned* arrived = reinterpret_cast<unsigned*>(part + num_tokens * gridDim.x);
  const int row = blockIdx.y, chunk = (hidden_size + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * chunk;
  const int end = begin + chunk < hidden_size ? begin + chunk : hidden_size;
  const float sum = block_sum(add_rows(x, residual, row, begin, end));
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {{
    part[row * gridDim.x + blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(arrived + row, 1u) == gridDim.x - 1;
  }}
  __syncthreads();
  if (!last) return;
  __threadfence();
  float total = 0.f;
  const volatile float* parts = part + row * gridDim.x;
  for (int block = 0; block < gridDim.x; ++block) total += parts[block];
  write_rows(x, residual, weight, out, scale_of(total, eps), row, 0, hidden_size);
  if (threadIdx.x == 0) arrived[row] = 0u;
}}
"""

_BY_SIZE = _PLAIN + _PLAIN[len(_BLOCK_SUM) :].replace("plain", "wide")


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of launch: a candidate's parts and the dims it is tried at. ``min_capability`` is 90 for clusters."""

    name: str
    source: str
    launches: tuple[Mapping[str, Any], ...]
    dims: Mapping[str, int]
    workspace: Mapping[str, Any] = field(default_factory=dict)
    storage: DType = DType.BFLOAT16
    min_capability: int = 80

    def candidate(self) -> Candidate:
        """The candidate; what a round of generation would have returned."""
        plan = LaunchPlan.model_validate({"launches": list(self.launches), "workspace": dict(self.workspace)})
        return Candidate(contract=CONTRACT, target=Target.CUDA, source=self.source, plan=plan)


def _dims(num_tokens: int, hidden_size: int, has_residual: int = 1) -> dict[str, int]:
    return {"num_tokens": num_tokens, "hidden_size": hidden_size, "has_residual": has_residual}


def _launch(entry: str, grid: tuple[str, str, str], block: int = 256, **more: Any) -> dict[str, Any]:
    return {"entry": entry, "grid": grid, "block": (str(block), "1", "1"), **more}


_ROWS = ("num_tokens", "1", "1")
CASES = (
    Case("plain, bfloat16", _PLAIN, (_launch("plain", _ROWS),), _dims(5, 1032)),
    Case("plain, float16", _PLAIN, (_launch("plain", _ROWS),), _dims(5, 1032), storage=DType.FLOAT16),
    Case("plain, float32", _PLAIN, (_launch("plain", _ROWS),), _dims(5, 1032), storage=DType.FLOAT32),
    Case("null pointer", _PLAIN, (_launch("plain", _ROWS),), _dims(3, 4096, has_residual=0)),
    Case(
        "192 KB dynamic shared memory",
        _SHARED,
        (_launch("in_shared", _ROWS, 512, shared_bytes="hidden_size * 4 + 65536"),),
        _dims(3, 32768),
        min_capability=90,
    ),
    *(
        Case(
            f"cluster of {size}",
            _CLUSTER,
            (_launch("clustered", (f"num_tokens * {size}", "1", "1"), cluster=(str(size), "1", "1")),),
            _dims(5, 8192),
            min_capability=90,
        )
        for size in (2, 8, 16)
    ),
    Case(
        "cooperative",
        _COOPERATIVE,
        (_launch("together", ("num_sms", "1", "1"), cooperative=True),),
        _dims(3, 8192),
        {"bytes": "num_tokens * num_sms * 4"},
    ),
    Case(
        "programmatic dependent, two launches",
        _DEPENDENT,
        tuple(_launch(entry, _ROWS, programmatic_dependent=True) for entry in ("scales", "rows")),
        _dims(7, 4096),
        {"bytes": "num_tokens * 4"},
    ),
    Case(
        "counter in a workspace zeroed once",
        _LAST_BLOCK,
        (_launch("last_block", ("8", "num_tokens", "1"), 128),),
        _dims(4, 4096),
        {"bytes": "num_tokens * 8 * 4 + num_tokens * 4", "zeroed": "once"},
    ),
    Case(
        "launch chosen by a condition",
        _BY_SIZE,
        (
            _launch("plain", _ROWS, when="num_tokens <= 4"),
            _launch("wide", _ROWS, 1024, when="num_tokens > 4"),
        ),
        _dims(6, 2048),
    ),
)
