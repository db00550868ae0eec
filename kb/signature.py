"""The C interface of a contract, generated: parameter list and the prelude put in front of every candidate.

The prompt shows it, the static gate requires it and the loaders compile it, so the three cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kb.contract import Contract, DimKind, Role
from kb.dtype import DType, Target

_C_TYPES = {
    Target.CUDA: {DType.BFLOAT16: "__nv_bfloat16", DType.FLOAT16: "__half"},
    Target.CPU: {DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"},
}
_COMMON = {DType.T: "T", DType.FLOAT32: "float", DType.INT32: "int", DType.INT64: "long long"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of every entry, in order. ``kind``: ``tensor``, ``scalar``, ``dim`` or ``workspace``."""

    name: str
    c_type: str
    kind: str
    dtype: DType | None = None

    def __str__(self) -> str:
        return f"{self.c_type} {self.name}"


def parameters(contract: Contract, target: Target) -> tuple[Parameter, ...]:
    """Tensors in declared order, scalars, runtime dims, then the workspace pointer."""
    names = _COMMON | _C_TYPES[target]
    found = [
        Parameter(t.name, f"{'const ' if t.role is Role.IN else ''}{names[t.dtype]}* __restrict__", "tensor", t.dtype)
        for t in contract.tensors
    ]
    found += [Parameter(s.name, names[s.dtype], "scalar", s.dtype) for s in contract.scalars]
    found += [Parameter(name, "int", "dim", DType.INT32) for name in contract.dims_of(DimKind.RUNTIME)]
    found.append(Parameter("workspace", "void* __restrict__", "workspace"))
    return tuple(found)


def signature(contract: Contract, target: Target, entry: str = "ENTRY") -> str:
    """The declaration that every entry must have, over several lines."""
    head = 'extern "C" __global__ void' if target is Target.CUDA else 'extern "C" void'
    body = ",\n    ".join(str(p) for p in parameters(contract, target))
    return f"{head} {entry}(\n    {body})"


def prelude(
    contract: Contract, target: Target, dims: Mapping[str, int], storage: DType, device: Mapping[str, int]
) -> str:
    """Declarations put in front of a candidate's source: the storage type ``T`` and every static dim.

    ``device`` holds the device symbols (``num_sms``). Runtime and workload dims are not constants and are left out.
    """
    names = _COMMON | _C_TYPES[target]
    lines = list(_CUDA_HEAD if target is Target.CUDA else _CPU_HEAD)
    lines.append(f"using T = {names[storage]};")
    constants = {n: dims[n] for n in contract.dims_of(DimKind.STATIC, DimKind.FLAG)} | dict(device)
    lines += [f"constexpr int {name} = {value};" for name, value in constants.items()]
    return "\n".join(lines) + "\n"


_CUDA_HEAD = ("#include <cuda_bf16.h>", "#include <cuda_fp16.h>", "#include <cuda/std/cstdint>")
_CPU_HEAD = (
    "#include <cstdint>",
    "#include <cmath>",
    "#include <cstring>",
    "#include <algorithm>",
    "#include <omp.h>",
    "#if defined(__x86_64__)",
    "#include <immintrin.h>",
    "#elif defined(__aarch64__)",
    "#include <arm_neon.h>",
    "#endif",
    "struct bfloat16 { std::uint16_t bits; };",
    "struct float16 { std::uint16_t bits; };",
    "static inline float to_float(float x) { return x; }",
    "static inline float to_float(bfloat16 x) {",
    "  std::uint32_t u = std::uint32_t(x.bits) << 16; float f; std::memcpy(&f, &u, 4); return f; }",
    "static inline float to_float(float16 x) { _Float16 h; std::memcpy(&h, &x.bits, 2); return float(h); }",
    "template <class S> static inline S from_float(float f);",
    "template <> inline float from_float<float>(float f) { return f; }",
    "template <> inline bfloat16 from_float<bfloat16>(float f) {",
    "  std::uint32_t u; std::memcpy(&u, &f, 4);",
    "  if ((u & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t((u >> 16) | 0x40u)};",
    "  return {std::uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)}; }",
    "template <> inline float16 from_float<float16>(float f) {",
    "  _Float16 h = _Float16(f); float16 r; std::memcpy(&r.bits, &h, 2); return r; }",
)
