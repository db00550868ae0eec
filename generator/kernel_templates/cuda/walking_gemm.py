"""The tensor-core GEMM for rows of x that are read over and over: a block keeps its part of x in shared memory.

A fixed number of blocks walks over the tiles of the weight, which alone stream through the stages; nothing drains
between two tiles. The blocks of a cluster share the contraction: each keeps its slice of x, for all of its rows.
"""

from __future__ import annotations

from collections.abc import Collection

from generator.kernel_templates.cuda.gemm import start_of
from generator.kernel_templates.cuda.tensor_gemm import (
    MULTIPLY,
    PAD,
    PLAIN,
    STORE_SUMS,
    blocks_of,
    read_sums,
    tile_m_of,
)
from generator.kernel_templates.parameters import TensorGemmParameters
from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import c_type, indented
from generator.kernel_templates.sizes import reads, text
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

_FILL = (
    """
const auto fill = [&](int slot, int column0, int tile) {
  S* const to_w = stages + slot * STAGE;
#pragma unroll
  for (int i = threadIdx.x; i < PARTS * TILE_N * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS, k = tile * TILE_K + c * 8;
    const int column = column0 + r % TILE_N;
    const bool inside = column < N && k < K;
    const S* from = weight_rows + (inside ? (start_of(r / TILE_N) + column) * K + k : 0);
    copy_async(to_w + r * TILE_K + (c ^ r % 8) * 8, from, inside);
  }
};
for (int i = threadIdx.x; i < count * TILE_M * CHUNKS; i += THREADS) {  // this block's slice of x, tile by tile
  const int r = i / CHUNKS, c = i % CHUNKS, row = first_row + r % TILE_M;
  const int k = (first_tile + r / TILE_M) * TILE_K + c * 8;
  const bool inside = row < M && k < K;
  copy_async(of_x + r * TILE_K + (c ^ r % 8) * 8, x_rows + (inside ? size_t(row) * K + k : 0), inside);
}
float sums[PARTS][WARP_TILES][TILE_M / 8][4];
const auto use = [&](int slot, int tile) {
  const S* const of_w = stages + slot * STAGE;
  const S* const x_tile = of_x + tile * TILE_M * TILE_K;
"""
    + indented(MULTIPLY.strip("\n").split("\n"), 1)
    + """
};
const int total = walks * count;  // tiles of the weight's slice this block reads
int unit = 0, filled = 0, next_column = blockIdx.x * TILE_N, next_tile = first_tile;
const auto fill_next = [&]() {
  if (filled < total) {
    fill(filled % STAGES, next_column, next_tile);
    ++filled;
    if (++next_tile == last_tile) {
      next_tile = first_tile;
      next_column += stride;
    }
  }
  commit_copies();
};
#pragma unroll 1
for (int s = 0; s < STAGES - 1; ++s) fill_next();
"""
)

_TILE = (
    """
#pragma unroll
for (int p = 0; p < PARTS; ++p)
#pragma unroll
  for (int m = 0; m < WARP_TILES; ++m)
#pragma unroll
    for (int n = 0; n < TILE_M / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[p][m][n][i] = 0.0f;
#pragma unroll 1
for (int tile = 0; tile < count; ++tile, ++unit) {
  wait_copies<STAGES - 2>();
  __syncthreads();  // this tile is there for everyone, and everyone is done with the one before it
  fill_next();
  use(unit % STAGES, tile);
}
"""
    + STORE_SUMS.strip("\n")
    + "\n"
)


def shared_bytes(spec: GemmSpec, p: TensorGemmParameters, runtime: Collection[str] = ()) -> str:
    """Two tiles of sums (one is written while the other is read), the slice of x, and the stages."""
    parts, tile_m = len(spec.parts), tile_m_of(spec.m, p, runtime)
    sums = f"2 * {parts} * {tile_m} * {p.tile_n + PAD} * 4"
    slice_ = f"ceil_div(ceil_div({text(spec.k)}, {p.tile_k}), {p.split}) * {p.tile_k * 2} * {tile_m}"
    return f"{sums} + {slice_} + {p.stages * parts * p.tile_n * p.tile_k * 2}"


def walking_gemm_stage(
    spec: GemmSpec, p: TensorGemmParameters, entry: str, when: str | None = None, runtime: Collection[str] = ()
) -> Stage:
    """The launch that computes all of ``spec``. ``runtime``: dims that are arguments, not constants."""
    tile_m = tile_m_of(spec.m, p, runtime)
    # The multiprocessors of a cluster are neighbours, and not every group of them is whole: with all of them asked for,
    # the last cluster would wait for the others to end.
    resident = f"{p.walk} * {'(num_sms - 4)' if p.split > 1 else 'num_sms'}"
    barrier = "cluster_barrier();" if p.split > 1 else "__syncthreads();"
    body = [
        f"using S = {c_type(spec.dtype, Target.CUDA)};",
        f"{'const' if reads(spec.m, runtime) else 'constexpr'} int M = {text(spec.m)};",
        f"constexpr int N = {text(spec.n)}, K = {text(spec.k)}, PARTS = {len(spec.parts)};",
        f"constexpr int TILE_M = {tile_m}, TILE_N = {p.tile_n}, TILE_K = {p.tile_k};",
        f"constexpr int STAGES = {p.stages}, WARPS = {p.warps}, SPLIT = {p.split};",
        "constexpr int THREADS = WARPS * 32, CHUNKS = TILE_K / 8, WARP_TILES = TILE_N / WARPS / 16;",
        "constexpr int STAGE = PARTS * TILE_N * TILE_K;  // elements of a stage",
        f"constexpr int PITCH = TILE_N + {PAD};  // floats from one row of sums to the next",
        "constexpr int SUMS = PARTS * TILE_M * PITCH;  // floats of a tile of sums",
        "constexpr int TILES = (K + TILE_K - 1) / TILE_K, SLICE = (TILES + SPLIT - 1) / SPLIT;",
        'static_assert(K % 8 == 0, "rows of x and of the weight start on 16 bytes");',
        "extern __shared__ __align__(128) unsigned char shared[];",
        "float* const both_sums = reinterpret_cast<float*>(shared);",
        "S* const of_x = reinterpret_cast<S*>(both_sums + 2 * SUMS);",
        "S* const stages = of_x + SLICE * TILE_M * TILE_K;",
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        f"const int rank = {'cluster_rank()' if p.split > 1 else '0'};",
        "const int first_row = blockIdx.z * TILE_M, stride = gridDim.x * TILE_N;",
        "const int walks = (N - int(blockIdx.x) * TILE_N + stride - 1) / stride;  // tiles this block visits",
        "const int first_tile = TILES * rank / SPLIT, last_tile = TILES * (rank + 1) / SPLIT;",
        "const int count = last_tile - first_tile;",
        f"const S* const weight_rows = {spec.weight};",
        f"const S* const x_rows = {spec.x};",
        start_of(spec),
        *(["after_predecessor();"] if p.dependent else []),
        "// One sum of row t of x and row j of the weight for every part, and what becomes of it.",
        "const auto finish = [&](const float* shared_sums, int first_column) {",
        "  for (int e = rank * THREADS + threadIdx.x; e < TILE_M * TILE_N; e += SPLIT * THREADS) {",
        "    const int t = e / TILE_N, j = e % TILE_N;",
        "    const int row = first_row + t, column = first_column + j;",
        "    if (row >= M || column >= N) continue;",
        *("    " + x for x in read_sums(len(spec.parts), p.split)),
        *(
            "    " + x
            for x in point_lines(spec.inputs, spec.epilogue, spec.stores, spec.scalars, ("row", "column"), Target.CUDA)
        ),
        "  }",
        "};",
        "if constexpr (sizeof(S) == 2) {",
        *("  " + x for x in _FILL.strip("\n").split("\n")),
        "  for (int walk = 0; walk < walks; ++walk) {",
        "    float* const shared_sums = both_sums + walk % 2 * SUMS;",
        *("    " + x for x in _TILE.strip("\n").split("\n")),
        f"    {barrier}",
        "    finish(shared_sums, blockIdx.x * TILE_N + walk * stride);",
        "  }",
        "  wait_copies<0>();",
        "} else {",
        "  for (int walk = 0; walk < walks; ++walk) {",
        "    float* const shared_sums = both_sums + walk % 2 * SUMS;",
        "    const int first_column = blockIdx.x * TILE_N + walk * stride;",
        *("    " + x for x in PLAIN.strip("\n").split("\n")),
        f"    {barrier}",
        "    finish(shared_sums, first_column);",
        "  }",
        "}",
        *(["cluster_barrier();  // no block leaves while another reads its shared memory"] if p.split > 1 else []),
    ]
    return Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=blocks_of(p),
        grid=(
            f"max(1, min(ceil_div({text(spec.n)}, {p.tile_n}), {resident} // {p.split}))",
            str(p.split),
            f"max(1, ceil_div({text(spec.m)}, {tile_m}))",
        ),
        block=str(p.warps * 32),
        threads=p.warps * 32,
        shared=shared_bytes(spec, p, runtime),
        cluster=("1", str(p.split), "1"),
        dependent=p.dependent,
        when=when,
    )
