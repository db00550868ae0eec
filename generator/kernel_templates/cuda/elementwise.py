"""Elementwise chains on CUDA: a thread takes a few neighbours along the last dim, as packs where it can."""

from __future__ import annotations

from generator.kernel_templates.parameters import ElementwiseParameters
from generator.kernel_templates.points import address, convert, load, point_lines
from generator.kernel_templates.program import c_type, indented, line, needed, read_names, variable
from generator.kernel_templates.sizes import product, text, value
from generator.kernel_templates.space import Space, collapse
from generator.kernel_templates.specs import ElementwiseSpec, TensorArg
from generator.kernel_templates.stage import Stage
from kb.dtype import Target


def elementwise_stage(spec: ElementwiseSpec, p: ElementwiseParameters, entry: str, when: str | None = None) -> Stage:
    """The launch that computes all of ``spec``."""
    space = collapse(spec.shape, spec.inputs, tuple(s.to for s in spec.stores))
    rows, inner = product(space.outer), space.inner
    body = [
        f"constexpr int VECTOR = {p.vector};",
        f"const long long rows = {_long(rows)}, inner = {_long(inner)};",
        "const long long packs = (inner + VECTOR - 1) / VECTOR;  // of a row",
        f"const long long index = blockIdx.x * {p.block}LL + threadIdx.x;",
        "if (index >= rows * packs) return;",
        "const long long row = index / packs, first = index % packs * VECTOR;",
        *space.coordinates("row"),
    ]
    body += _vector_path(spec, space)
    body += [
        "const long long last = first + VECTOR < inner ? first + VECTOR : inner;",
        "for (long long i = first; i < last; ++i) {",
        *(
            "  " + x
            for x in point_lines(
                space.seen(spec.inputs),
                spec.steps,
                space.seen_stores(spec.stores),
                spec.scalars,
                space.indices("i"),
                Target.CUDA,
            )
        ),
        "}",
    ]
    total = f"{text(rows)} * ceil_div({text(inner)}, {p.vector})"
    return Stage(
        entry=entry,
        body=indented(body, 1),
        blocks=("pack",),
        grid=(f"max(1, ceil_div({total}, {p.block}))", "1", "1"),
        block=str(p.block),
        threads=p.block,
        when=when,
    )


def _long(size: int | str) -> str:
    return f"{size}LL" if isinstance(size, int) else text(size).replace(" * ", " * 1LL * ")


def _vector_path(spec: ElementwiseSpec, space: Space) -> list[str]:
    """The path for whole packs; empty where no tensor is contiguous along the last dim."""
    inputs, stores = space.seen(spec.inputs), space.seen_stores(spec.stores)
    wanted = {s.value for s in stores}
    steps = needed(spec.steps, wanted)
    names = read_names(steps, wanted)
    inputs = tuple(a for a in inputs if a.name in names)
    packed = [a for a in (*inputs, *(s.to for s in stores)) if a.strides[-1] == 1]
    if not packed or any(s.to.strides[-1] != 1 for s in stores):
        return []
    aligned = [x for arg in packed for x in _alignments(arg)]
    condition = " && ".join([*dict.fromkeys(aligned), "first + VECTOR <= inner"])
    indices = space.indices("first")
    lines = [f"if ({condition}) {{"]
    for arg in inputs:
        at = address(arg, indices)
        kind = c_type(arg.dtype, Target.CUDA)
        if arg.strides[-1] == 1:
            lines.append(
                f"  const Pack<{kind}, VECTOR> in_{variable(arg.name)} = "
                f"*reinterpret_cast<const Pack<{kind}, VECTOR>*>({arg.name} + {at});"
            )
        elif arg.strides[-1] == 0:
            lines.append(f"  const float {variable(arg.name)} = {load(f'{arg.name}[{at}]', Target.CUDA)};")
    for n, store in enumerate(stores):
        lines.append(f"  Pack<{c_type(store.to.dtype, Target.CUDA)}, VECTOR> out_{n};")
    lines += ["#pragma unroll", "  for (int j = 0; j < VECTOR; ++j) {"]
    for arg in inputs:
        if arg.strides[-1] == 1:
            read = load(f"in_{variable(arg.name)}.v[j]", Target.CUDA)
        elif arg.strides[-1] == 0:
            continue
        else:
            read = load(f"{arg.name}[{address(arg, space.indices('(first + j)'))}]", Target.CUDA)
        lines.append(f"    const float {variable(arg.name)} = {read};")
    lines += ["    " + line(step, spec.scalars, Target.CUDA) for step in steps]
    for n, store in enumerate(stores):
        name = store.value if store.value in spec.scalars else variable(store.value)
        lines.append(f"    out_{n}.v[j] = {convert(name, store.to.dtype, Target.CUDA)};")
    lines.append("  }")
    for n, store in enumerate(stores):
        kind = c_type(store.to.dtype, Target.CUDA)
        at = address(store.to, indices)
        lines.append(f"  *reinterpret_cast<Pack<{kind}, VECTOR>*>({store.to.name} + {at}) = out_{n};")
    return [*lines, "  return;", "}"]


def _alignments(arg: TensorArg) -> list[str]:
    """Conditions under which every pack of a tensor starts on a multiple of its size."""
    found = []
    for size in (*arg.strides[:-1], arg.offset):
        if value(size) is None:
            found.append(f"{text(size)} % VECTOR == 0")
        elif value(size) != 0:
            found.append(f"{value(size)} % VECTOR == 0")
    return found
