from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from runtime.compile_cache import CompileCache
from runtime.device import assumed_cuda_device
from runtime.kernel import compile_candidate
from validator.image_check import image_problems
from validator.source.rules import known_constants

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def library(folder: Path, source: str) -> Path:
    (folder / "a.cpp").write_text("#include <cmath>\n#include <cstring>\n" + source)
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fopenmp", "a.cpp", "-o", "a.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "a.so"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('extern "C" int system(const char*); extern "C" void norm() { system("ls"); }', "forbidden-import"),
        ('extern "C" int open(const char*, int, ...); extern "C" void norm() { open("a", 0); }', "forbidden-import"),
        ('extern "C" void norm() {} extern "C" double sin(double) { return 0; }', "forbidden-export"),
        ('int state; extern "C" int norm() { return ++state; }', "state-between-calls"),
        ('extern "C" int norm() { static int n; return ++n; }', "state-between-calls"),
        ('thread_local long state[9]; extern "C" long norm() { return ++state[0]; }', "state-between-calls"),
        ('int f(); struct S { S() { n = 3; } int n; } s; extern "C" int norm() { return s.n; }', "runs-at-load"),
        ('__attribute__((constructor)) void early() {} extern "C" void norm() {}', "runs-at-load"),
        ('__attribute__((destructor)) void late() {} extern "C" void norm() {}', "runs-at-load"),
    ],
)
def test_what_a_library_does_beside_its_entry_shows(tmp_path: Path, source: str, code: str) -> None:
    assert code in {p.code for p in image_problems(library(tmp_path, source), Target.CPU, ["norm"])}


def test_a_kernel_with_openmp_math_and_tables_is_clean(tmp_path: Path) -> None:
    source = """
    #include <vector>
    static const float table[] = {1, 2, 3};
    extern "C" void norm(float* x, int n) {
      std::vector<float> row(n);
      #pragma omp parallel for
      for (int i = 0; i < n; ++i) x[i] = std::exp(x[i]) + std::sqrt(table[i % 3]) + row[i];
      std::memcpy(x, row.data(), 4 * n);
    }"""
    assert image_problems(library(tmp_path, source), Target.CPU, ["norm"]) == []


def cubin_codes(contract: Contract, images: CompileCache, added: str) -> list[str]:
    source = f"""{added}
    extern "C" __global__ void rms(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                                    T* __restrict__ out, float eps, void* __restrict__ workspace) {{ BODY }}
    """.replace("BODY", "out[0] = T(USED);")
    candidate = Candidate(
        contract=contract.id,
        target=Target.CUDA,
        source=source,
        plan=LaunchPlan(launches=(Launch(entry="rms"),)),
    )
    dims = contract.sweep.correctness[0]
    device = assumed_cuda_device("sm_90")
    compiled = compile_candidate(candidate, contract, dims, DType.FLOAT32, cache=images, device=device)
    return [
        p.code for p in image_problems(compiled.image.path, Target.CUDA, ["rms"], known_constants(candidate, contract))
    ]


def test_a_cubin_with_constants_only_is_clean(contracts: dict[str, Contract], images: CompileCache) -> None:
    pytest.importorskip("cuda.core")
    added = (
        "constexpr int A = 3, B[2] = {1, 2};\n__constant__ float TABLE[2] = {1, 2};\n#define USED (A + B[1] + TABLE[0])"
    )
    assert cubin_codes(contracts["residual_rmsnorm"], images, added) == []


def test_zeros_the_compiler_copies_from_are_no_state(contracts: dict[str, Contract], images: CompileCache) -> None:
    pytest.importorskip("cuda.core")
    added = """
    struct alignas(16) Words { unsigned v[4]; };
    __device__ __forceinline__ Words load(const void* p, int k) {
      if (k >= hidden_size) return {};
      return *reinterpret_cast<const Words*>(static_cast<const char*>(p) + size_t(k) * 2);
    }
    #define USED float(load(x, threadIdx.x).v[0])"""
    assert cubin_codes(contracts["residual_rmsnorm"], images, added) == []


@pytest.mark.parametrize(
    "added",
    [
        "__device__ int counter() { static int n; return atomicAdd(&n, 1); }\n#define USED counter()",
        "__device__ int counter;\n#define USED atomicAdd(&counter, 1)",
        "__device__ const float kept[2] = {1, 2};\n#define USED (const_cast<volatile float*>(kept)[threadIdx.x] = 3)",
        "namespace n { __device__ float kept[8]; }\n#define USED (n::kept[0] += 1)",
    ],
)
def test_a_cubin_with_device_variables_is_refused(
    contracts: dict[str, Contract], images: CompileCache, added: str
) -> None:
    pytest.importorskip("cuda.core")
    assert "state-between-calls" in cubin_codes(contracts["residual_rmsnorm"], images, added)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not elf at all" * 20, b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_that_is_no_image_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="ELF"):
        image_problems(tmp_path / "x", Target.CPU, [])
