"""Row programs on CPU: a thread owns a row, passes over it once a reduction and once to store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from generator.kernel_templates.points import address, convert, load
from generator.kernel_templates.program import indented, line, needed, read_names, row_values, variable
from generator.kernel_templates.sizes import product, text
from generator.kernel_templates.space import Space, collapse
from generator.kernel_templates.specs import Reduce, Reduction, RowSpec, Step, Store
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

_SHORT = 512  # elements summed on their own, which keeps the rounding errors of a long float32 sum small


def row_stage(spec: RowSpec, entry: str, when: str | None = None) -> Stage:
    """The entry that computes all of ``spec``."""
    space = collapse(spec.shape, spec.inputs, tuple(s.to for s in (*spec.stores, *spec.row_stores)), keep_last=True)
    rows = text(product(space.outer))
    body = [
        f"const long long rows = {rows};",
        f"const int columns = {text(space.inner)};",
        "#pragma omp parallel for if (rows * columns > 16384)",
        "for (long long row = 0; row < rows; ++row) {",
        *("  " + x for x in _row(spec, space)),
        "}",
    ]
    return Stage(entry=entry, body=indented(body, 1), blocks=("value_of", "extreme"), when=when)


def _row(spec: RowSpec, space: Space) -> list[str]:
    lines = space.coordinates("row")
    inputs = space.seen(spec.inputs)
    flat = tuple(a for a in inputs if a.strides[-1] == 0)
    rowwise = row_values(spec.phases, {*(a.name for a in flat), *spec.scalars})
    for arg in flat:
        read = load(f"{arg.name}[{address(arg, space.indices('0'))}]", Target.CPU)
        lines.append(f"const float {variable(arg.name)} = {read};")
    for phase in spec.phases:
        if isinstance(phase, Reduce):
            lines += _reduction(spec, space, phase, rowwise)
        elif phase.out in rowwise:
            lines.append(line(phase, spec.scalars, Target.CPU))
    for store in space.seen_stores(spec.row_stores):
        lines.append(_store(spec, space, store, "0"))
    if spec.stores:
        lines.append("for (int i = 0; i < columns; ++i) {")
        lines += ["  " + x for x in _element(spec, space, {s.value for s in spec.stores}, rowwise)]
        lines += ["  " + _store(spec, space, s, "i") for s in space.seen_stores(spec.stores)]
        lines.append("}")
    return lines


def _element(spec: RowSpec, space: Space, wanted: Collection[str], rowwise: Collection[str]) -> list[str]:
    """Loads and steps that ``wanted`` values of element i need."""
    steps: Sequence[Step] = [s for s in spec.phases if isinstance(s, Step)]
    steps = [s for s in needed(steps, wanted) if s.out not in rowwise]
    names = read_names(steps, wanted)
    lines = []
    for arg in space.seen(spec.inputs):
        if arg.name in names and arg.strides[-1] != 0:
            read = load(f"{arg.name}[{address(arg, space.indices('i'))}]", Target.CPU)
            lines.append(f"const float {variable(arg.name)} = {read};")
    return [*lines, *(line(s, spec.scalars, Target.CPU) for s in steps)]


def _reduction(spec: RowSpec, space: Space, phase: Reduce, rowwise: Collection[str]) -> list[str]:
    out = variable(phase.out)
    read = phase.value if phase.value in spec.scalars else variable(phase.value)
    element = _element(spec, space, {phase.value}, rowwise)
    if phase.kind in (Reduction.SUM, Reduction.MEAN):
        return [
            f"float sum_{out} = 0.0f;",
            f"for (int start = 0; start < columns; start += {_SHORT}) {{",
            f"  const int stop = std::min(columns, start + {_SHORT});",
            "  float part = 0.0f;",
            "#pragma omp simd reduction(+ : part)",
            "  for (int i = start; i < stop; ++i) {",
            *("    " + x for x in element),
            f"    part += {read};",
            "  }",
            f"  sum_{out} += part;",
            "}",
            f"const float {out} = sum_{out}{' / float(columns)' if phase.kind is Reduction.MEAN else ''};",
        ]
    largest = "true" if phase.kind is Reduction.MAX else "false"
    return [
        f"float {out} = {'-INFINITY' if phase.kind is Reduction.MAX else 'INFINITY'};",
        "for (int i = 0; i < columns; ++i) {",
        *("  " + x for x in element),
        f"  {out} = extreme<{largest}>({out}, {read});",
        "}",
    ]


def _store(spec: RowSpec, space: Space, store: Store, index: str) -> str:
    name = store.value if store.value in spec.scalars else variable(store.value)
    return f"{store.to.name}[{address(store.to, space.indices(index))}] = {convert(name, store.to.dtype, Target.CPU)};"
