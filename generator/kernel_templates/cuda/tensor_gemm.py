"""GEMM on tensor cores for few rows of x: the weight is streamed once through shared memory, several stages deep.

A block computes TILE_N rows of the weight by TILE_M rows of x. Weights lie on the rows of the m16n8k16 product, so
that eight rows of x fill one tile. Where the grid would be too small, the blocks of a cluster share the contraction
and add their sums up through distributed shared memory, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Collection

from generator.kernel_templates.cuda.gemm import start_of
from generator.kernel_templates.parameters import TensorGemmParameters
from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import c_type, indented
from generator.kernel_templates.sizes import Size, reads, text, value
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

PAD = 4  # floats after a row of sums in shared memory, against bank conflicts

# One tile of weights by one of x, added to the sums.
MULTIPLY = """
#pragma unroll
for (int c = 0; c < CHUNKS; c += 4) {  // 32 deep: two products
  unsigned b[TILE_M / 8][4];
#pragma unroll
  for (int n = 0; n < TILE_M / 8; ++n) {
    const int r = n * 8 + lane % 8;
    load_matrices(x_tile + r * TILE_K + ((c + lane / 8) ^ r % 8) * 8, b[n]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int m = 0; m < WARP_TILES; ++m) {
        const int r = p * TILE_N + (warp * WARP_TILES + m) * 16 + lane % 16;
        unsigned a[4];
        load_matrices(of_w + r * TILE_K + ((c + 2 * half + lane / 16) ^ r % 8) * 8, a);
#pragma unroll
        for (int n = 0; n < TILE_M / 8; ++n) multiply<S>(sums[p][m][n], a, b[n][2 * half], b[n][2 * half + 1]);
      }
}
"""

# Tensor cores cut off what they add to an accumulator, so a long contraction leans towards zero. A result of 16 bits
# does not show it; one of 32 does, and there a tile is summed on its own and added with rounding.
ROUNDED = (
    "float parts[PARTS][WARP_TILES][TILE_M / 8][4] = {};\n"
    + MULTIPLY.strip("\n").replace("sums[", "parts[")
    + """
#pragma unroll
for (int p = 0; p < PARTS; ++p)
#pragma unroll
  for (int m = 0; m < WARP_TILES; ++m)
#pragma unroll
    for (int n = 0; n < TILE_M / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[p][m][n][i] += parts[p][m][n][i];
"""
)

# Sums to shared memory, [part][row of x][row of the weight].
STORE_SUMS = """
#pragma unroll
for (int p = 0; p < PARTS; ++p)
#pragma unroll
  for (int m = 0; m < WARP_TILES; ++m)
#pragma unroll
    for (int n = 0; n < TILE_M / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = (warp * WARP_TILES + m) * 16 + lane / 4 + i / 2 * 8, t = n * 8 + lane % 4 * 2 + i % 2;
        shared_sums[(p * TILE_M + t) * PITCH + j] = sums[p][m][n][i];
      }
"""

# The loop over the contraction: every stage is a tile of weights and one of x, both 16-byte chunks under a swizzle.
_BEFORE = """
const auto fill = [&](int slot, int tile) {
  S* const to_w = stages + slot * STAGE;
  S* const to_x = to_w + PARTS * TILE_N * TILE_K;
#pragma unroll
  for (int i = threadIdx.x; i < PARTS * TILE_N * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS, k = tile * TILE_K + c * 8;
    const int column = first_column + r % TILE_N;
    const bool inside = column < N && k < K;
    const S* from = weight_rows + (inside ? (start_of(r / TILE_N) + column) * K + k : 0);
    copy_async(to_w + r * TILE_K + (c ^ r % 8) * 8, from, inside);
  }
#pragma unroll
  for (int i = threadIdx.x; i < TILE_M * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS, k = tile * TILE_K + c * 8;
    const bool inside = first_row + r < M && k < K;
    copy_async(to_x + r * TILE_K + (c ^ r % 8) * 8, x_rows + (inside ? size_t(first_row + r) * K + k : 0), inside);
  }
};
float sums[PARTS][WARP_TILES][TILE_M / 8][4] = {};
const auto use = [&](int slot) {
  const S* const of_w = stages + slot * STAGE;
  const S* const x_tile = of_w + PARTS * TILE_N * TILE_K;
"""
_AFTER = (
    """
};
#pragma unroll
for (int s = 0; s < STAGES - 1; ++s) {
  if (first_tile + s < last_tile) fill(s, first_tile + s);
  commit_copies();
}
for (int tile = first_tile; tile < last_tile; ++tile) {
  wait_copies<STAGES - 2>();
  __syncthreads();  // this tile is there for everyone, and everyone is done with the one before it
  const int next = tile + STAGES - 1;
  if (next < last_tile) fill((next - first_tile) % STAGES, next);
  commit_copies();
  use((tile - first_tile) % STAGES);
}
wait_copies<0>();
__syncthreads();
"""
    + STORE_SUMS.strip("\n")
    + "\n"
)

# Types without tensor cores here: a warp a row of the weight, over this block's share of the contraction.
PLAIN = """
for (int j = warp; j < TILE_N && first_column + j < N; j += WARPS) {
  const S* w_rows[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) w_rows[p] = weight_rows + (start_of(p) + first_column + j) * K;
  for (int t0 = 0; t0 < TILE_M && first_row + t0 < M; t0 += 8) {
    const S* some_rows[8];
#pragma unroll
    for (int t = 0; t < 8; ++t) some_rows[t] = x_rows + size_t(min(first_row + t0 + t, M - 1)) * K;
    float sums[PARTS][8];
    Dots<K, 32 * SPLIT, 2, false, PARTS, 8, S>::run(w_rows, some_rows, rank * 32 + lane, sums);
    if (lane == 0)
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
#pragma unroll
        for (int t = 0; t < 8; ++t) shared_sums[(p * TILE_M + t0 + t) * PITCH + j] = sums[p][t];
  }
}
"""


def tile_m_of(m: Size, p: TensorGemmParameters, runtime: Collection[str] = ()) -> str:
    """Rows of x a block takes; for 0 the least of 8, 16, 32 and 64 that holds them all, as C++ and plans read it.

    Where the rows are a runtime dim the tile cannot follow it, and 0 means 16.
    """
    if p.tile_m:
        return str(p.tile_m)
    if reads(m, runtime):
        return "16"
    if (known := value(m)) is not None:
        return str(next((t for t in (8, 16, 32) if known <= t), 64))
    return f"(8 + 8 * ({text(m)} > 8) + 16 * ({text(m)} > 16) + 32 * ({text(m)} > 32))"


def shared_bytes(spec: GemmSpec, p: TensorGemmParameters, runtime: Collection[str] = ()) -> str:
    """Dynamic shared memory: the stages, or the sums that take their place. Enough for any element type."""
    parts, tile_m = len(spec.parts), tile_m_of(spec.m, p, runtime)
    stages = f"{p.stages} * ({parts * p.tile_n} + {tile_m}) * {p.tile_k} * 2"
    return f"max({stages}, {parts} * {tile_m} * {p.tile_n + PAD} * 4)"


def sums_lines(
    spec: GemmSpec, p: TensorGemmParameters, runtime: Collection[str] = (), *, rounded: bool = False
) -> list[str]:
    """Statements that leave the block's share of the products in ``shared_sums``, and a barrier after them.

    ``rounded``: for sums that leave the kernel in float32.
    """
    kind = c_type(spec.dtype, Target.CUDA)
    multiply = indented((ROUNDED if rounded else MULTIPLY).strip("\n").split("\n"), 1)
    loop = f"{_BEFORE}{multiply}{_AFTER}"
    return [
        f"using S = {kind};",
        f"{'const' if reads(spec.m, runtime) else 'constexpr'} int M = {text(spec.m)};",
        f"constexpr int N = {text(spec.n)}, K = {text(spec.k)}, PARTS = {len(spec.parts)};",
        f"constexpr int TILE_M = {tile_m_of(spec.m, p, runtime)}, TILE_N = {p.tile_n}, TILE_K = {p.tile_k};",
        f"constexpr int STAGES = {p.stages}, WARPS = {p.warps}, SPLIT = {p.split};",
        "constexpr int THREADS = WARPS * 32, CHUNKS = TILE_K / 8, WARP_TILES = TILE_N / WARPS / 16;",
        "constexpr int STAGE = (PARTS * TILE_N + TILE_M) * TILE_K;  // elements of a stage",
        f"constexpr int PITCH = TILE_N + {PAD};  // floats from one row of sums to the next",
        "extern __shared__ __align__(128) unsigned char shared[];",
        "float* const shared_sums = reinterpret_cast<float*>(shared);",
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        f"const int rank = {'cluster_rank()' if p.split > 1 else '0'};",
        "const int first_column = blockIdx.x * TILE_N, first_row = blockIdx.z * TILE_M;",
        f"const S* const weight_rows = {spec.weight};",
        f"const S* const x_rows = {spec.x};",
        start_of(spec),
        *(["after_predecessor();"] if p.dependent else []),
        'static_assert(K % 8 == 0, "rows of x and of the weight start on 16 bytes");',
        "if constexpr (sizeof(S) == 2) {",
        "  S* const stages = reinterpret_cast<S*>(shared);",
        "  constexpr int TILES = (K + TILE_K - 1) / TILE_K;",
        "  const int first_tile = TILES * rank / SPLIT, last_tile = TILES * (rank + 1) / SPLIT;",
        *("  " + x for x in loop.strip("\n").split("\n")),
        "} else {",
        *("  " + x for x in PLAIN.strip("\n").split("\n")),
        "}",
        "cluster_barrier();" if p.split > 1 else "__syncthreads();",
    ]


def blocks_of(p: TensorGemmParameters) -> tuple[str, ...]:
    """Building blocks that ``sums_lines`` uses."""
    extra = (*(("cluster",) if p.split > 1 else ()), *(("wait",) if p.dependent else ()))
    return ("dots", "cp_async", "mma", *extra)


def read_sums(parts: int, split: int) -> list[str]:
    """``v_acc0`` …: the sums of row t of x and row j of the weight, the cluster's shares added in order."""
    lines = []
    for i in range(parts):
        at = f"shared_sums + ({i} * TILE_M + t) * PITCH + j"
        if split == 1:
            lines.append(f"const float v_acc{i} = *({at});")
            continue
        lines += [
            f"float v_acc{i} = 0.0f;",
            "#pragma unroll",
            f"for (int s = 0; s < SPLIT; ++s) v_acc{i} += read_remote({at}, s);",
        ]
    return lines


def tensor_gemm_stage(
    spec: GemmSpec, p: TensorGemmParameters, entry: str, when: str | None = None, runtime: Collection[str] = ()
) -> Stage:
    """The launch that computes all of ``spec``. ``runtime``: dims that are arguments, not constants."""
    body = [
        *sums_lines(spec, p, runtime),
        "for (int e = rank * THREADS + threadIdx.x; e < TILE_M * TILE_N; e += SPLIT * THREADS) {",
        "  const int t = e / TILE_N, j = e % TILE_N;",
        "  const int row = first_row + t, column = first_column + j;",
        "  if (row >= M || column >= N) continue;",
        *("  " + x for x in read_sums(len(spec.parts), p.split)),
        *(
            "  " + x
            for x in point_lines(spec.inputs, spec.epilogue, spec.stores, spec.scalars, ("row", "column"), Target.CUDA)
        ),
        "}",
        *(["cluster_barrier();  // no block leaves while another reads its shared memory"] if p.split > 1 else []),
    ]
    return Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=blocks_of(p),
        grid=grid_of(spec, p, runtime),
        block=str(p.warps * 32),
        threads=p.warps * 32,
        shared=shared_bytes(spec, p, runtime),
        cluster=("1", str(p.split), "1"),
        dependent=p.dependent,
        when=when,
    )


def grid_of(spec: GemmSpec, p: TensorGemmParameters, runtime: Collection[str] = ()) -> tuple[str, str, str]:
    """Tiles of the weight, the cluster's shares, tiles of x."""
    return (
        f"max(1, ceil_div({text(spec.n)}, {p.tile_n}))",
        str(p.split),
        f"max(1, ceil_div({text(spec.m)}, {tile_m_of(spec.m, p, runtime)}))",
    )
