"""GEMV and GEMM on CPU: a thread owns a block of weight rows and reads each once for four rows of x, in float32."""

from __future__ import annotations

from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import c_type, indented
from generator.kernel_templates.sizes import text
from generator.kernel_templates.specs import GemmSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

_LONGEST_BY_FOUR = 32768  # four rows of x of this length, in float32, still fit a thread's stack
_PARTS = 64  # the argmax cuts the weight into so many parts, however many threads there are


def gemm_stage(spec: GemmSpec, block: int, entry: str, when: str | None = None) -> Stage:
    """The entry that computes all of ``spec``; a task is ``block`` rows of the weight."""
    body = [
        *_head(spec),
        f"constexpr int BLOCK = {block};",
        "#pragma omp parallel for",
        "for (int first = 0; first < N; first += BLOCK) {",
        *("  " + x for x in _tiles("first", "std::min(N, first + BLOCK)", _point(spec), spec)),
        "}",
    ]
    return Stage(entry=entry, body=indented(body, 1), blocks=("value_of", "row_dots"), when=when)


def argmax_stage(spec: GemmSpec, ids: str, largest: str, entry: str) -> tuple[Stage, str]:
    """The entry that finds the largest product of every row of x, the lowest index on a tie; bytes of workspace."""
    keep = [
        "for (int r = 0; r < count; ++r)",
        "  if (sums[0][r] > best[row0 + r].logit) best[row0 + r] = {sums[0][r], column};",
    ]
    body = [
        *_head(spec),
        f"constexpr int WINNERS = {_PARTS};",
        "Best* const found = static_cast<Best*>(workspace);  // [WINNERS][M]",
        "#pragma omp parallel for",
        "for (int part = 0; part < WINNERS; ++part) {",
        "  const int first = int((long long)N * part / WINNERS), last = int((long long)N * (part + 1) / WINNERS);",
        "  Best* const best = found + std::size_t(part) * M;",
        "  for (int t = 0; t < M; ++t) best[t] = {-INFINITY, first};",
        *("  " + x for x in _tiles("first", "last", keep, spec)),
        "}",
        "for (int t = 0; t < M; ++t) {",
        "  Best winner = {-INFINITY, 0};",
        "  for (int part = 0; part < WINNERS; ++part)",
        "    if (found[std::size_t(part) * M + t].logit > winner.logit) winner = found[std::size_t(part) * M + t];",
        f"  {ids}[t] = winner.id;",
        f"  {largest}[t] = winner.logit;",
        "}",
    ]
    stage = Stage(entry=entry, body=indented(body, 1), blocks=("value_of", "row_dots", "best"))
    return stage, f"{text(spec.m)} * {_PARTS * 8}"


def _head(spec: GemmSpec) -> list[str]:
    return [
        f"using S = {c_type(spec.dtype, Target.CPU)};",
        f"const int M = {text(spec.m)}, N = {text(spec.n)};",
        f"constexpr int K = {text(spec.k)}, PARTS = {len(spec.parts)};",
        f"constexpr int ROWS = K <= {_LONGEST_BY_FOUR} ? 4 : 1;  // rows of x that share a read of the weight",
    ]


def _tiles(first: str, last: str, inner: list[str], spec: GemmSpec) -> list[str]:
    """For every tile of rows of x: to float32 once, then past every weight row from ``first`` to ``last``."""
    lines = [
        "for (int row0 = 0; row0 < M; ) {",
        "  const bool several = ROWS > 1 && M - row0 > 1;",
        "  const int count = std::min(M - row0, several ? ROWS : 1);",
        "  float values[ROWS * K];",
        "  for (int r = 0; r < (several ? ROWS : 1); ++r)",
        "    for (int k = 0; k < K; ++k)",
        f"      values[r * K + k] = row0 + r < M ? to_float({spec.x}[std::size_t(row0 + r) * K + k]) : 0.0f;",
        f"  for (int column = {first}; column < {last}; ++column) {{",
        "    float sums[PARTS][ROWS];",
    ]
    for i, part in enumerate(spec.parts):
        start = "" if part == 0 else f"{text(part)} + "
        row = f"{spec.weight} + std::size_t({start}column) * K"
        lines += [
            f"    if (several) row_dots<ROWS, S>({row}, values, K, sums[{i}]);",
            f"    else row_dots<1, S>({row}, values, K, sums[{i}]);",
        ]
    lines += ["    " + x for x in inner]
    return [*lines, "  }", "  row0 += several ? ROWS : 1;", "}"]


def _point(spec: GemmSpec) -> list[str]:
    lines = ["for (int r = 0; r < count; ++r) {", "  const int row = row0 + r;"]
    lines += [f"  const float v_acc{i} = sums[{i}][r];" for i in range(len(spec.parts))]
    points = point_lines(spec.inputs, spec.epilogue, spec.stores, spec.scalars, ("row", "column"), Target.CPU)
    return [*lines, *("  " + x for x in points), "}"]
