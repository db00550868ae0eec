"""GEMV on CUDA: a warp, or a few that split the contraction, owns a row of the weight and reads it once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from generator.kernel_templates.parameters import GemvParameters
from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import c_type, indented
from generator.kernel_templates.sizes import reads, text
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

# Widths a warp reads in whole steps of 16 bytes a lane, for 2-byte types: 256 elements a warp and step.
_TWO_STEPS = 4096  # up to here eight warps read a row in two steps, where it divides
_LONG = 12288  # from here on a row is long enough for four
_FEW, _FEWER = 12, 6  # rows a multiprocessor below which four, and eight, warps a row are needed to keep it busy


@dataclass(frozen=True, slots=True)
class Split:
    """Warps a row: as C++ and as a launch plan's expression."""

    code: str
    plan: str


def split_of(spec: GemmSpec, p: GemvParameters) -> Split:
    """Warps that share a row of the weight, given or chosen from n, k and the number of multiprocessors.

    Measured on an H200: two warps a row are within a few per cent of the best for most shapes; eight where they read
    the whole row in two steps; four for long rows; and few rows need more warps each.
    """
    if p.split:
        return Split(str(p.split), str(p.split))
    n, k, most = text(spec.n), text(spec.k), p.warps
    eight, four, two = min(8, most), min(4, most), min(2, most)
    code = (
        f"N < {_FEWER} * num_sms ? {eight} : K % 2048 == 0 && K <= {_TWO_STEPS} ? {eight} : "
        f"N < {_FEW} * num_sms || K >= {_LONG} ? {four} : {two}"
    )
    plan = (
        f"max({two} + {eight - two} * ({k} % 2048 == 0) * ({k} <= {_TWO_STEPS}) + {four - two} * ({k} >= {_LONG}), "
        f"1 + {four - 1} * ({n} < {_FEW} * num_sms) + {eight - four} * ({n} < {_FEWER} * num_sms))"
    )
    return Split(code, plan)


def gemv_stage(
    spec: GemmSpec, p: GemvParameters, entry: str, when: str | None = None, runtime: Collection[str] = ()
) -> Stage:
    """The launch that computes all of ``spec``. ``runtime``: dims that are arguments, not constants."""
    split = split_of(spec, p)
    rows_a_block = f"({p.warps} // {split.plan} * {p.rows})"
    body = [
        *head(spec, p, split.code, runtime),
        "const int first_row = (blockIdx.x * GROUPS + warp / SPLIT) * ROWS, first_token = blockIdx.y * TOKENS;",
        "if (first_row < N && first_token < M) {",
        *("  " + x for x in products(spec)),
        "  if (lane == 0)",
        "#pragma unroll",
        "    for (int r = 0; r < PARTS * ROWS; ++r)",
        "#pragma unroll",
        "      for (int t = 0; t < TOKENS; ++t) shared_sums[warp][r][t] = sums[r][t];",
        "}",
        "__syncthreads();",
        "for (int e = threadIdx.x; e < GROUPS * ROWS * TOKENS; e += WARPS * 32) {",
        "  const int j = e % (GROUPS * ROWS), t = e / (GROUPS * ROWS);",
        "  const int column = blockIdx.x * GROUPS * ROWS + j, row = first_token + t;",
        "  if (column >= N || row >= M) continue;",
        *("  " + x for x in sum_lines(len(spec.parts))),
        *(
            "  " + x
            for x in point_lines(spec.inputs, spec.epilogue, spec.stores, spec.scalars, ("row", "column"), Target.CUDA)
        ),
        "}",
    ]
    return Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=("dots", *(("wait",) if p.dependent else ())),
        grid=(
            f"max(1, ceil_div({text(spec.n)}, {rows_a_block}))",
            f"max(1, ceil_div({text(spec.m)}, {p.tokens}))",
            "1",
        ),
        block=str(p.warps * 32),
        threads=p.warps * 32,
        dependent=p.dependent,
        when=when,
    )


def head(spec: GemmSpec, p: GemvParameters, split: str, runtime: Collection[str] = ()) -> list[str]:
    """Constants, the place of this warp, and the shared sums."""
    constant = not reads(spec.m, runtime)
    tokens = f"M < 1 ? 1 : M < {p.tokens} ? M : {p.tokens}" if constant else str(p.tokens)
    lines = [
        f"{'constexpr' if constant else 'const'} int M = {text(spec.m)};",
        f"constexpr int N = {text(spec.n)}, K = {text(spec.k)}, PARTS = {len(spec.parts)};",
        f"constexpr int WARPS = {p.warps}, ROWS = {p.rows}, UNROLL = {p.unroll};",
        f"constexpr bool AHEAD = {'true' if p.ahead else 'false'};  // a round of loads ahead",
        f"constexpr int TOKENS = {tokens};  // rows of x that share a read",
        f"constexpr int SPLIT = {split};  // warps that share a row's contraction",
        "constexpr int GROUPS = WARPS / SPLIT;",
        "__shared__ float shared_sums[WARPS][PARTS * ROWS][TOKENS];",
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
    ]
    return [*lines, *(["after_predecessor();"] if p.dependent else [])]


def products(spec: GemmSpec) -> list[str]:
    """Statements that leave the products of this warp's rows in ``sums``, the same in every lane."""
    kind = c_type(spec.dtype, Target.CUDA)
    lines = [f"const {kind}* w_rows[PARTS * ROWS];", f"const {kind}* x_rows[TOKENS];"]
    lines += ["#pragma unroll", "for (int r = 0; r < ROWS; ++r) {"]
    for i, part in enumerate(spec.parts):
        start = "" if part == 0 else f"{text(part)} + "
        lines.append(f"  w_rows[{i} * ROWS + r] = {spec.weight} + size_t({start}min(first_row + r, N - 1)) * K;")
    lines += ["}", "#pragma unroll"]
    lines.append(f"for (int t = 0; t < TOKENS; ++t) x_rows[t] = {spec.x} + size_t(min(first_token + t, M - 1)) * K;")
    lines.append("float sums[PARTS * ROWS][TOKENS];")
    dots = f"Dots<K, 32 * SPLIT, UNROLL, AHEAD, PARTS * ROWS, TOKENS, {kind}>"
    lines.append(f"{dots}::run(w_rows, x_rows, warp % SPLIT * 32 + lane, sums);")
    return lines


def sum_lines(parts: int) -> list[str]:
    """``v_acc0`` …: the split sums of column j, row t, added in a fixed order."""
    lines = []
    for i in range(parts):
        lines += [
            f"float v_acc{i} = 0.0f;",
            "#pragma unroll",
            f"for (int s = 0; s < SPLIT; ++s) v_acc{i} += shared_sums[j / ROWS * SPLIT + s][{i} * ROWS + j % ROWS][t];",
        ]
    return lines
