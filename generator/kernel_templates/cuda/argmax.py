"""The index of the largest product on CUDA: no logits in memory, a winner a block, merged by a second launch.

Both forms share the workspace, Best[m][blocks], and the merge.
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.kernel_templates.cuda import gemv, tensor_gemm
from generator.kernel_templates.parameters import GemvParameters, TensorGemmParameters
from generator.kernel_templates.program import indented
from generator.kernel_templates.sizes import text
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage

# Blocks a multiprocessor gets: each keeps its winner while it strides over the rows.
_BLOCKS_A_PROCESSOR = 8

_MERGE = """
  // Winners of the blocks, in any order: the larger logit and the lower id decide.
  constexpr int BLOCKS = {blocks};
  const Best* found = static_cast<const Best*>(workspace) + size_t(blockIdx.x) * BLOCKS;
  __shared__ Best winners[8];
  Best best = nothing();
  for (int i = threadIdx.x; i < BLOCKS; i += 256) best = better(best, found[i]);
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) winners[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {{
    for (int i = 1; i < 8; ++i) best = better(best, winners[i]);
    {ids}[blockIdx.x] = best.id == NOBODY ? 0 : best.id;
    {largest}[blockIdx.x] = best.logit;
  }}
"""


@dataclass(frozen=True, slots=True)
class Argmax:
    """Where the winners go: names of an int32 and a float32 tensor of m elements."""

    ids: str
    largest: str


def gemv_argmax(
    spec: GemmSpec, to: Argmax, p: GemvParameters, entry: str, when: str | None = None
) -> tuple[Stage, Stage, str]:
    """Two launches and the bytes of workspace. A warp keeps the best of every ROWS-th row it visits."""
    blocks = f"min(ceil_div({text(spec.n)}, {p.warps * p.rows}), {_BLOCKS_A_PROCESSOR} * num_sms)"
    body = [
        *gemv.head(spec, p, "1"),
        "__shared__ Best winners[WARPS][TOKENS];",
        "const int first_token = blockIdx.y * TOKENS;",
        "Best best[TOKENS];",
        "#pragma unroll",
        "for (int t = 0; t < TOKENS; ++t) best[t] = nothing();",
        "const int stride = gridDim.x * WARPS * ROWS;",
        "for (int first_row = (blockIdx.x * WARPS + warp) * ROWS; first_row < N; first_row += stride) {",
        *("  " + x for x in gemv.products(spec)),
        "#pragma unroll",
        "  for (int r = 0; r < ROWS; ++r)",
        "#pragma unroll",
        "    for (int t = 0; t < TOKENS; ++t) best[t] = better(best[t], {sums[r][t], min(first_row + r, N - 1)});",
        "}",
        "#pragma unroll",
        "for (int t = 0; t < TOKENS; ++t)",
        "  if (lane == 0) winners[warp][t] = best[t];",
        "__syncthreads();",
        "const int t = threadIdx.x;",
        "if (t < TOKENS && first_token + t < M) {",
        "  Best winner = winners[0][t];",
        "  for (int i = 1; i < WARPS; ++i) winner = better(winner, winners[i][t]);",
        "  static_cast<Best*>(workspace)[size_t(first_token + t) * gridDim.x + blockIdx.x] = winner;",
        "}",
    ]
    body = [x for x in body if "shared_sums" not in x]
    stage = Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=("dots", "best", *(("wait",) if p.dependent else ())),
        grid=(blocks, f"ceil_div({text(spec.m)}, min({text(spec.m)}, {p.tokens}))", "1"),
        block=str(p.warps * 32),
        threads=p.warps * 32,
        dependent=p.dependent,
        when=when,
    )
    count = f"({text(spec.n)} + {p.warps * p.rows - 1}) / {p.warps * p.rows}"
    most = f"{_BLOCKS_A_PROCESSOR} * num_sms"
    merge = _merge(spec, to, f"{count} < {most} ? {count} : {most}", f"{entry}_merge", when)
    return stage, merge, f"{text(spec.m)} * {blocks} * 8"


def tensor_argmax(
    spec: GemmSpec, to: Argmax, p: TensorGemmParameters, entry: str, when: str | None = None
) -> tuple[Stage, Stage, str]:
    """Two launches and the bytes of workspace. A block's winners are taken from its sums in shared memory."""
    if p.split != 1 or p.walk:
        raise ValueError("the argmax has rows enough: its contraction is never split, and its blocks do not walk")
    blocks = f"ceil_div({text(spec.n)}, {p.tile_n})"
    body = [
        *tensor_gemm.sums_lines(spec, p, rounded=True),
        "for (int t = warp; t < TILE_M && first_row + t < M; t += WARPS) {",
        "  Best best = nothing();",
        "  for (int j = lane; j < TILE_N && first_column + j < N; j += 32)",
        "    best = better(best, {shared_sums[t * PITCH + j], first_column + j});",
        "  best = warp_best(best);",
        "  if (lane == 0) static_cast<Best*>(workspace)[size_t(first_row + t) * gridDim.x + blockIdx.x] = best;",
        "}",
    ]
    stage = Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=(*tensor_gemm.blocks_of(p), "best"),
        grid=tensor_gemm.grid_of(spec, p),
        block=str(p.warps * 32),
        threads=p.warps * 32,
        shared=tensor_gemm.shared_bytes(spec, p),
        dependent=p.dependent,
        when=when,
    )
    merge = _merge(spec, to, f"({text(spec.n)} + {p.tile_n - 1}) / {p.tile_n}", f"{entry}_merge", when)
    return stage, merge, f"{text(spec.m)} * {blocks} * 8"


def _merge(spec: GemmSpec, to: Argmax, blocks: str, entry: str, when: str | None) -> Stage:
    return Stage(
        entry=entry,
        body=_MERGE.strip("\n").format(blocks=blocks, ids=to.ids, largest=to.largest),
        blocks=("best",),
        grid=(text(spec.m), "1", "1"),
        block="256",
        threads=256,
        when=when,
    )
