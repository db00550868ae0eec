"""The static rules: one honest candidate, and what each change to it is told."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.contract import Contract
from kb.dtype import Target
from kb.library import library_root, load_library
from validator.source import tokenize
from validator.source.ptx import template_problems
from validator.source.rules import problems_of

CPU = """
static float square(float v) { return v * v; }
extern "C" void norm(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                     T* __restrict__ out, float eps, void* __restrict__ workspace) {
#pragma omp parallel for
  for (int t = 0; t < num_tokens; ++t) out[t] = from_float<T>(square(to_float(x[t])) + eps);
}
"""
CUDA = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
constexpr int THREADS = 256;
__device__ __forceinline__ float load(const float* p) {
  float v;
  asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
extern "C" __global__ void __launch_bounds__(THREADS) norm(
    const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight, T* __restrict__ out, float eps,
    void* __restrict__ workspace) {
  extern __shared__ float rows[];
  __shared__ float sum;
  asm volatile("griddepcontrol.wait;\\n\\tfence.proxy.async;" ::: "memory");
  out[blockIdx.x] = x[blockIdx.x];
}
"""


def codes(contract: Contract, source: str, target: Target = Target.CPU, entry: str = "norm") -> set[str]:
    candidate = Candidate(
        contract=contract.id, target=target, source=source, plan=LaunchPlan(launches=(Launch(entry=entry),))
    )
    return {p.code for p in problems_of(candidate, contract)}


@pytest.fixture
def contract(contracts: dict[str, Contract]) -> Contract:
    return contracts["residual_rmsnorm"]


def test_honest_sources_pass(contract: Contract) -> None:
    assert codes(contract, CPU) == set()
    assert codes(contract, CUDA, Target.CUDA) == set()


def test_every_right_candidate_of_the_calibration_corpus_passes(contracts: dict[str, Contract]) -> None:
    from kb.candidate_files import read_candidate

    folders = sorted((Path(__file__).parents[1] / "calibration" / "right").iterdir())
    for folder in folders:
        for target in Target:
            candidate = read_candidate(folder, folder.name, target)
            assert problems_of(candidate, contracts[folder.name]) == [], (folder.name, target)


BODY = "float f() { "


@pytest.mark.parametrize(
    ("added", "code"),
    [
        ("#include <thread>", "forbidden-include"),
        ("#include <cstdio>", "forbidden-include"),
        ('#include "/etc/passwd"', "forbidden-include"),
        ("#include MACRO", "forbidden-include"),
        ("#include_next <cmath>", "forbidden-directive"),
        ('#line 7 "other.cpp"', "forbidden-directive"),
        ('# 7 "other.cpp"', "forbidden-directive"),
        ('#pragma GCC optimize("O0")', "forbidden-directive"),
        ("#pragma weak norm", "forbidden-directive"),
        ("#pragma omp target", "forbidden-directive"),
        ("#define A(x, y) x##y", "forbidden-macro"),
        ("#define S(x) #x", "forbidden-macro"),
        ("#define int long", "forbidden-macro"),
        ("#define hidden_size 8", "forbidden-macro"),
        ("#define to_float(x) 0.0f", "forbidden-macro"),
        ("#undef NDEBUG", "forbidden-macro"),
        ("#if __has_include(<thread>)\n#endif", "forbidden-name"),
        (BODY + 'system("ls"); }', "forbidden-name"),
        (BODY + "sys\\\ntem(nullptr); }", "forbidden-name"),
        (BODY + "return read(0, nullptr, 0); }", "forbidden-name"),
        (BODY + "auto g = ::open; }", "forbidden-name"),
        (BODY + "auto g = &close; }", "forbidden-name"),
        (BODY + "std::thread t; }", "forbidden-name"),
        (BODY + "return pthread_self(); }", "forbidden-name"),
        (BODY + "return omp_get_wtime(); }", "forbidden-name"),
        (BODY + "omp_set_num_threads(1); }", "forbidden-name"),
        (BODY + "return __rdtsc(); }", "forbidden-name"),
        (BODY + "dlopen(nullptr, 0); }", "forbidden-name"),
        (BODY + "exit(0); }", "forbidden-name"),
        (BODY + "throw 1; }", "forbidden-name"),
        (BODY + 'asm("syscall"); }', "forbidden-name"),
        (BODY + "getenv(nullptr); }", "forbidden-name"),
        ("int main() { return 0; }", "forbidden-name"),
        ("#define F system\n", "forbidden-name"),
        ("int counter;", "state-between-calls"),
        ("static float cache[64];", "state-between-calls"),
        ("float* remembered = nullptr;", "state-between-calls"),
        ("namespace a { namespace b { int hidden; } }", "state-between-calls"),
        ("template <int N> int per_size;", "state-between-calls"),
        (BODY + "static int calls = 0; return ++calls; }", "state-between-calls"),
        (BODY + "thread_local int calls; return 0; }", "state-between-calls"),
        ("struct S { static int shared; };", "state-between-calls"),
        ("struct S { int a; } instance;", "state-between-calls"),
        ('extern "C" int puts_(const char*);', "forbidden-construct"),
        ('extern "C" { void helper() {} }', "forbidden-construct"),
        ("extern int elsewhere;", "forbidden-construct"),
        ("using namespace std;", "forbidden-construct"),
        ("void call(void (*f)(int)) { f(1); }", "forbidden-construct"),
        ("__attribute__((constructor)) void early() {}", "forbidden-attribute"),
        ("[[gnu::constructor]] void early() {}", "forbidden-attribute"),
        ('__attribute__((section(".text"))) int f();', "forbidden-attribute"),
        ('__attribute__((alias("norm"))) void g();', "forbidden-attribute"),
        ('const char* text = "hello";', "forbidden-literal"),
        ('const auto* text = R"(x)";', "forbidden-spelling"),
        ("int \\u0061b;", "forbidden-spelling"),
        ("int caf\u00e9;", "forbidden-spelling"),
        ("%:define A", "forbidden-spelling"),
        ("int a??(1??);", "forbidden-spelling"),
        ("/* never closed", "forbidden-spelling"),
    ],
)
def test_what_is_added_to_a_cpu_source_is_found(contract: Contract, added: str, code: str) -> None:
    assert code in codes(contract, f"{CPU}\n{added}\n")


@pytest.mark.parametrize(
    ("added", "code"),
    [
        ("__device__ int counter;", "state-between-calls"),
        ("__device__ float cache[1024] = {};", "state-between-calls"),
        ("__managed__ int both;", "state-between-calls"),
        ('__device__ void f() { printf("x"); }', "forbidden-name"),
        ("__device__ void f() { malloc(8); }", "forbidden-name"),
        ("__device__ void f() { int* p = new int; }", "forbidden-name"),
        ("__device__ void f() { __trap(); }", "forbidden-name"),
        ("__device__ long long f() { return clock64(); }", "forbidden-name"),
        ("__device__ void f() { __nanosleep(100); }", "forbidden-name"),
        ("__device__ void f() { cudaMalloc(nullptr, 8); }", "forbidden-name"),
        ("__host__ void f() {}", "forbidden-name"),
        ("__global__ void g(); __device__ void f() { g<<<1, 1>>>(); }", "forbidden-construct"),
        ('__device__ void f() { asm volatile("mov.u64 %0, %%clock64;" : "=l"(x)); }', "forbidden-asm"),
        ('__device__ void f() { asm volatile("nanosleep.u32 100;"); }', "forbidden-asm"),
        ('__device__ void f() { asm volatile("trap;"); }', "forbidden-asm"),
        ('__device__ void f() { asm volatile("call vprintf, (x);"); }', "forbidden-asm"),
        ('__device__ void f() { asm volatile("\\x74rap;"); }', "forbidden-asm"),
        ("__device__ void f() { asm volatile(TEXT); }", "forbidden-asm"),
        ('__device__ void f() { asm volatile("/* */ trap;"); }', "forbidden-asm"),
        ("#include <cstdlib>", "forbidden-include"),
        ("#include <cuda/../../etc/passwd>", "forbidden-include"),
        ('#include "cuda_runtime.h"', "forbidden-include"),
    ],
)
def test_what_is_added_to_a_cuda_source_is_found(contract: Contract, added: str, code: str) -> None:
    assert code in codes(contract, f"{CUDA}\n{added}\n", Target.CUDA)


@pytest.mark.parametrize(
    "added",
    [
        "constexpr float TABLE[4] = {1, 2, 3, 4};",
        "static const int SIZES[] = {1, 2};",
        "template <int N> static inline float twice(float v) { return v * N; }",
        "struct Pair { float a, b; float sum() const { return a + b; } };",
        "enum class Mode { A, B };",
        "using Vec = float __attribute__((vector_size(32)));",
        '// system("rm -rf /"); a comment is no code',
        "static float f(float wait) { return wait * 2; }  // an ordinary word as a name",
        "#include <vector>\nstatic float g() { std::vector<float> v(3); return v[0]; }",
        '#define UNROLL _Pragma("unroll")',
        "namespace detail { static inline int half(int n) { return n / 2; } }",
        "static inline float h(float v) { static constexpr float k = 2.0f; return v * k; }",
        "[[maybe_unused]] static void nothing() {}",
    ],
)
def test_what_kernels_really_write_passes(contract: Contract, added: str) -> None:
    assert codes(contract, f"{CPU}\n{added}\n") == set()


@pytest.mark.parametrize(
    "added",
    [
        "__constant__ float TABLE[4] = {1, 2, 3, 4};",
        "#include <cuda/barrier>\n#include <mma.h>\n#include <cooperative_groups/reduce.h>",
        '__device__ void f() { asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p bra DONE; DONE: }" :: "r"(1)); }',
        '__device__ void f() { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(1), "l"(p)); }',
        "__device__ void f(cuda::barrier<cuda::thread_scope_block>& b) { b.wait(b.arrive()); }",
        "__device__ void f() { cudaTriggerProgrammaticLaunchCompletion(); }",
        "__device__ void f() { const int thread = threadIdx.x, clock_rate = 1; }",
    ],
)
def test_what_cuda_kernels_really_write_passes(contract: Contract, added: str) -> None:
    assert codes(contract, f"{CUDA}\n{added}\n", Target.CUDA) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const T* __restrict__ x", "T* __restrict__ x"),
        ("const T* __restrict__ x", "const float* __restrict__ x"),
        ("float eps", "double eps"),
        (", void* __restrict__ workspace", ""),
        ("float eps, void* __restrict__ workspace", "void* __restrict__ workspace, float eps"),
        ('extern "C" void norm', "void norm"),
        ('extern "C" void norm', 'extern "C" int norm'),
        ('extern "C" void norm', "static void norm"),
    ],
)
def test_a_signature_that_differs_is_refused(contract: Contract, old: str, new: str) -> None:
    assert old in CPU
    assert "wrong-signature" in codes(contract, CPU.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const T* __restrict__ x", "T const *x"),
        ("const T* __restrict__ x", "const T *const __restrict x"),
        ("float eps", "const float epsilon"),
        ('extern "C" void norm', 'extern "C" __attribute__((hot)) void norm'),
    ],
)
def test_the_same_signature_in_other_words_is_accepted(contract: Contract, old: str, new: str) -> None:
    assert codes(contract, CPU.replace(old, new)) == set()


def test_an_entry_that_is_not_there_is_named(contract: Contract) -> None:
    assert codes(contract, CPU, entry="other") >= {"missing-entry"}


def test_an_entry_may_stand_in_a_linkage_block(contract: Contract) -> None:
    inside = CPU.replace('extern "C" void norm', 'extern "C" {\nvoid norm') + "}\n"
    assert codes(contract, inside) == set()


def test_problems_carry_the_line_the_compiler_would_count(contract: Contract) -> None:
    source = CPU + "\n/* two\nlines */ int \\\n counter;\n"
    candidate = Candidate(
        contract=contract.id, target=Target.CPU, source=source, plan=LaunchPlan(launches=(Launch(entry="norm"),))
    )
    (problem,) = problems_of(candidate, contract)
    assert source.splitlines()[problem.line - 1].startswith("lines */ int")


@pytest.mark.parametrize("text", ["ld.global.f32 %0, [%1];", "@!p bra L1;\nL1:", "mov.u32 %0, %%laneid;", "{ }", ""])
def test_templates_from_the_list_pass(text: str) -> None:
    assert list(template_problems(text)) == []


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_tokenized_without_error(text: str) -> None:
    tokens, _ = tokenize(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    assert all(1 <= t.line <= lines for t in tokens)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "+", "(", ")", "{", "}", ";", "int", "static", "#", "\n", '"s"', "'c'", "//", "1.5e3"])
    )
)
def test_any_sequence_of_tokens_is_judged_without_error(words: list[str]) -> None:
    source = " ".join(words) or ";"
    codes(_norm(), source if source.strip() else ";")


@lru_cache(maxsize=1)
def _norm() -> Contract:
    return load_library(library_root()).contracts["residual_rmsnorm"]
