"""GEMM on CUDA cores: tiles of both operands as float32 in shared memory, a few sums a thread. For any element type."""

from __future__ import annotations

from generator.kernel_templates.parameters import GemmParameters
from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import c_type, indented
from generator.kernel_templates.sizes import text
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

_FILL = """
// Rows start .. start + COUNT - 1 of a matrix of K columns, from column k0, as [column][row]; zeros outside of it.
const auto fill = [&](float* to, const S* matrix, int count, int start, int limit, size_t offset, int k0) {
  for (int i = threadIdx.x; i < count * TILE_K; i += THREADS) {
    const int r = i / TILE_K, c = i % TILE_K;
    const bool inside = start + r < limit && k0 + c < K;
    to[c * (count + 1) + r] = inside ? float(matrix[(offset + start + r) * K + k0 + c]) : 0.0f;
  }
};
"""

_LOOP = """
float sums[PARTS][THREAD_M][THREAD_N] = {};
for (int k0 = 0; k0 < K; k0 += TILE_K) {
  fill(of_x, x_rows, TILE_M, first_row, M, 0, k0);
#pragma unroll
  for (int p = 0; p < PARTS; ++p) fill(of_w + p * PART, weight_rows, TILE_N, first_column, N, start_of(p), k0);
  __syncthreads();
  // A slice is summed on its own, which keeps the rounding errors of a long float32 sum small.
  float parts[PARTS][THREAD_M][THREAD_N] = {};
#pragma unroll 8
  for (int k = 0; k < TILE_K; ++k)
#pragma unroll
    for (int m = 0; m < THREAD_M; ++m) {
      const float a = of_x[k * (TILE_M + 1) + ty * THREAD_M + m];
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int n = 0; n < THREAD_N; ++n)
          parts[p][m][n] += a * of_w[p * PART + k * (TILE_N + 1) + tx + n * ACROSS];
    }
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
      for (int n = 0; n < THREAD_N; ++n) sums[p][m][n] += parts[p][m][n];
  __syncthreads();
}
"""


def gemm_stage(spec: GemmSpec, p: GemmParameters, entry: str, when: str | None = None) -> Stage:
    """The launch that computes all of ``spec``."""
    kind = c_type(spec.dtype, Target.CUDA)
    threads = p.tile_m // p.thread_m * (p.tile_n // p.thread_n)
    body = [
        f"using S = {kind};",
        f"const int M = {text(spec.m)}, N = {text(spec.n)}, K = {text(spec.k)};",
        f"constexpr int PARTS = {len(spec.parts)}, TILE_M = {p.tile_m}, TILE_N = {p.tile_n}, TILE_K = {p.tile_k};",
        f"constexpr int THREAD_M = {p.thread_m}, THREAD_N = {p.thread_n}, ACROSS = TILE_N / THREAD_N;",
        f"constexpr int THREADS = {threads}, PART = TILE_K * (TILE_N + 1);",
        "__shared__ float of_x[TILE_K * (TILE_M + 1)];",
        "__shared__ float of_w[PARTS * PART];",
        f"const S* const x_rows = {spec.x};",
        f"const S* const weight_rows = {spec.weight};",
        start_of(spec),
        "const int first_column = blockIdx.x * TILE_N, first_row = blockIdx.y * TILE_M;",
        "const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;",
        *_FILL.strip("\n").split("\n"),
        *_LOOP.strip("\n").split("\n"),
        "#pragma unroll",
        "for (int m = 0; m < THREAD_M; ++m)",
        "#pragma unroll",
        "  for (int n = 0; n < THREAD_N; ++n) {",
        "    const int row = first_row + ty * THREAD_M + m, column = first_column + tx + n * ACROSS;",
        "    if (row >= M || column >= N) continue;",
        *(f"    const float v_acc{i} = sums[{i}][m][n];" for i in range(len(spec.parts))),
        *(
            "    " + x
            for x in point_lines(spec.inputs, spec.epilogue, spec.stores, spec.scalars, ("row", "column"), Target.CUDA)
        ),
        "  }",
    ]
    return Stage(
        entry=entry,
        body=indented(body, 1),
        grid=(
            f"max(1, ceil_div({text(spec.n)}, {p.tile_n}))",
            f"max(1, ceil_div({text(spec.m)}, {p.tile_m}))",
            "1",
        ),
        block=str(threads),
        threads=threads,
        when=when,
    )


def start_of(spec: GemmSpec) -> str:
    """A function from the number of a part to its first row of the weight."""
    starts = text(spec.parts[-1])
    for i, part in reversed(list(enumerate(spec.parts[:-1]))):
        starts = f"p == {i} ? {text(part)} : {starts}"
    # By reference: a runtime dim may stand in it.
    return f"const auto start_of = [&](int p) -> size_t {{ return {starts}; }};  // first row of the weight of part p"
