"""Elementwise chains on CPU: pieces of rows shared among the threads, the last dim innermost."""

from __future__ import annotations

from generator.kernel_templates.parameters import ElementwiseParameters
from generator.kernel_templates.points import point_lines
from generator.kernel_templates.program import indented
from generator.kernel_templates.sizes import product, text
from generator.kernel_templates.space import collapse
from generator.kernel_templates.specs import ElementwiseSpec
from generator.kernel_templates.stage import Stage
from kb.dtype import Target


def elementwise_stage(spec: ElementwiseSpec, p: ElementwiseParameters, entry: str, when: str | None = None) -> Stage:
    """The entry that computes all of ``spec``; a thread takes ``p.block * p.vector`` points at a time."""
    space = collapse(spec.shape, spec.inputs, tuple(s.to for s in spec.stores))
    lines = point_lines(
        space.seen(spec.inputs),
        spec.steps,
        space.seen_stores(spec.stores),
        spec.scalars,
        space.indices("i"),
        Target.CPU,
    )
    body = [
        f"constexpr long long PIECE = {p.block * p.vector};",
        f"const long long rows = {text(product(space.outer))}, inner = {text(space.inner)};",
        "const long long pieces = (inner + PIECE - 1) / PIECE;  // of a row",
        "#pragma omp parallel for if (rows * inner > 16384)",
        "for (long long piece = 0; piece < rows * pieces; ++piece) {",
        "  const long long row = piece / pieces, first = piece % pieces * PIECE;",
        "  const long long last = std::min(inner, first + PIECE);",
        *("  " + x for x in space.coordinates("row")),
        "  for (long long i = first; i < last; ++i) {",
        *("    " + x for x in lines),
        "  }",
        "}",
    ]
    return Stage(entry=entry, body=indented(body, 1), blocks=("value_of",), when=when)
