"""Small kernels and candidates that the runtime's tests compile and call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kb.candidate import Candidate, LaunchPlan
from kb.contract import Contract, DimKind
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from kb.signature import parameters, signature


@lru_cache(maxsize=1)
def contracts() -> Mapping[str, Contract]:
    """The shipped contracts."""
    return load_library(library_root(Path(__file__).resolve().parents[2])).contracts


def kernel_dims_of(contract: Contract, shape: Mapping[str, int]) -> dict[str, int]:
    """A shape of the sweep without its workload dims."""
    return {n: v for n, v in shape.items() if contract.dims[n].kind is not DimKind.WORKLOAD}


def candidate(contract: str, target: Target, source: str, *launches: Mapping[str, Any], **workspace: Any) -> Candidate:
    """A candidate with these launches; a workspace is given as ``bytes=`` and ``zeroed=``."""
    plan = LaunchPlan.model_validate({"launches": list(launches), "workspace": workspace or {}})
    return Candidate(contract=contract, target=target, source=source, plan=plan)


def touching_every_argument(contract: Contract) -> str:
    """A CUDA kernel with the contract's signature that reads and writes through every pointer (null ones skipped)."""
    body = []
    for p in parameters(contract, Target.CUDA):
        if p.kind == "tensor" and "const" in p.c_type:
            body.append(f"if ({p.name}) sum += float({p.name}[threadIdx.x]);")
        elif p.kind in ("scalar", "dim"):
            body.append(f"sum += float({p.name});")
        elif p.kind == "tensor":
            body.append(f"if ({p.name}) {p.name}[threadIdx.x] = {_cast(p.dtype)}(sum);")
    lines = "\n  ".join(body)
    return f"{signature(contract, Target.CUDA, 'touch')} {{\n  float sum = 0.f;\n  {lines}\n}}\n"


def _cast(dtype: DType | None) -> str:
    return "T" if dtype is DType.T else {DType.FLOAT32: "float", DType.INT32: "int"}[dtype or DType.FLOAT32]


NORM_CPU = r"""
extern "C" void norm(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
  #pragma omp parallel for
  for (int t = 0; t < num_tokens; ++t) {
    const T* row = x + t * hidden_size;
    float sum = 0.f;
    for (int i = 0; i < hidden_size; ++i) {
      T s = row[i];
      if (has_residual) {
        s = from_float<T>(to_float(row[i]) + to_float(residual[t * hidden_size + i]));
        residual[t * hidden_size + i] = s;
      }
      const float f = to_float(s);
      sum += f * f;
    }
    const float r = 1.f / std::sqrt(sum / hidden_size + eps);
    const T* s = has_residual ? residual + t * hidden_size : row;
    for (int i = 0; i < hidden_size; ++i) {
      const T normed = from_float<T>(to_float(s[i]) * r);
      out[t * hidden_size + i] = from_float<T>(to_float(normed) * to_float(weight[i]));
    }
  }
}
"""

# Two launches that talk through the workspace: row sums first, then the rows.
NORM_CPU_TWO_STEPS = r"""
extern "C" void sums(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
  float* scale = static_cast<float*>(workspace);
  for (int t = 0; t < num_tokens; ++t) {
    float sum = 0.f;
    for (int i = 0; i < hidden_size; ++i) {
      const float f = to_float(x[t * hidden_size + i]);
      sum += f * f;
    }
    scale[t] = 1.f / std::sqrt(sum / hidden_size + eps);
  }
}
extern "C" void rows(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
  const float* scale = static_cast<const float*>(workspace);
  for (int t = 0; t < num_tokens; ++t)
    for (int i = 0; i < hidden_size; ++i) {
      const T normed = from_float<T>(to_float(x[t * hidden_size + i]) * scale[t]);
      out[t * hidden_size + i] = from_float<T>(to_float(normed) * to_float(weight[i]));
    }
}
"""
