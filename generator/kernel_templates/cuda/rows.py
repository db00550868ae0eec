"""Row programs on CUDA: a warp or a block owns a row, passes over it once a reduction and once to store.

The row's inputs stay in registers between the passes where they are contiguous and few; else they are read again,
from the cache. Steps are computed again in every pass that needs them: arithmetic is cheaper than memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from generator.kernel_templates.parameters import RowParameters
from generator.kernel_templates.points import address, convert, load
from generator.kernel_templates.program import c_type, indented, line, needed, read_names, row_values, variable
from generator.kernel_templates.sizes import product, reads, text, value
from generator.kernel_templates.space import Space, collapse
from generator.kernel_templates.specs import Reduce, Reduction, RowSpec, Step, Store, TensorArg
from generator.kernel_templates.stage import Stage
from kb.dtype import Target

# Elements of one input a thread may keep in registers.
KEPT_ELEMENTS = 64


def row_stage(
    spec: RowSpec, p: RowParameters, entry: str, when: str | None = None, runtime: Collection[str] = ()
) -> Stage:
    """The launch that computes all of ``spec``. ``runtime``: dims that are arguments, not constants."""
    space = collapse(spec.shape, spec.inputs, tuple(s.to for s in (*spec.stores, *spec.row_stores)), keep_last=True)
    writer = _Writer(spec, p, space, constant=not reads(space.inner, runtime))
    rows = product(space.outer)
    block = p.group * p.rows
    return Stage(
        entry=entry,
        body=indented(writer.body(), 1),
        blocks=("load_pack", "store_pack", "group_sum", "group_extreme"),
        grid=(f"max(1, ceil_div({text(rows)}, {p.rows}))", "1", "1"),
        block=str(block),
        threads=block,
        when=when,
    )


class _Writer:
    """Writes the body; holds what every part of it asks for."""

    def __init__(self, spec: RowSpec, p: RowParameters, space: Space, constant: bool) -> None:
        self.spec, self.p, self.space = spec, p, space
        self.inputs = space.seen(spec.inputs)
        self.stores = space.seen_stores(spec.stores)
        self.keep = p.keep and constant
        self.constant = constant
        self.steps = tuple(s for s in spec.phases if isinstance(s, Step))
        flat = [a.name for a in self.inputs if a.strides[-1] == 0]
        self.rowwise = row_values(spec.phases, {*flat, *spec.scalars})
        self.packed = tuple(a for a in self.inputs if a.strides[-1] == 1)

    def body(self) -> list[str]:
        rows = product(self.space.outer)
        cols = text(self.space.inner)
        lines = [
            f"constexpr int VECTOR = {self.p.vector}, GROUP = {self.p.group};",
            f"{'constexpr' if self.constant else 'const'} int columns = {cols};",
            "const int lane = threadIdx.x % GROUP;",
            f"const long long row = blockIdx.x * {self.p.rows}LL + threadIdx.x / GROUP;",
            f"if (row >= {text(rows)}) return;  // a whole warp, or a whole block",
            *self.space.coordinates("row"),
        ]
        for arg in (*self.inputs, *(s.to for s in self.stores)):
            if arg.strides[-1] == 1 and f"{_pointer(arg)} =" not in "\n".join(lines):
                start = address(arg, self.space.indices("0"))
                lines.append(f"{self._qualified(arg)}* const {_pointer(arg)} = {arg.name} + {_plain(start)};")
                lines.append(f"const bool {_aligned(arg)} = {self._alignment(arg)};")
        for arg in self.inputs:
            if arg.strides[-1] == 0:
                read = load(f"{arg.name}[{address(arg, self.space.indices('0'))}]", Target.CUDA)
                lines.append(f"const float {variable(arg.name)} = {read};")
        if self.keep and self.packed:
            lines += self._keeping()
        for phase in self.spec.phases:
            if isinstance(phase, Reduce):
                lines += self._reduction(phase)
            elif phase.out in self.rowwise:
                lines.append(line(phase, self.spec.scalars, Target.CUDA))
        if self.spec.row_stores:
            lines += self._row_stores()
        return [*lines, *self._last_pass()]

    def _qualified(self, arg: TensorArg) -> str:
        kind = c_type(arg.dtype, Target.CUDA)
        written = {s.to.name for s in (*self.spec.stores, *self.spec.row_stores)}
        return kind if arg.name in written else f"const {kind}"

    def _alignment(self, arg: TensorArg) -> str:
        found = []
        for size in (*arg.strides[:-1], arg.offset):
            known = value(size)
            if known is None or known % self.p.vector:
                found.append(f"{text(size)} % VECTOR == 0")
        return " && ".join(found) or "true"

    def _keeping(self) -> list[str]:
        lines = [
            "constexpr int CHUNKS = (columns + GROUP * VECTOR - 1) / (GROUP * VECTOR);",
            f"constexpr bool KEEP = CHUNKS * VECTOR <= {KEPT_ELEMENTS};  // of every input, in registers",
        ]
        for arg in self.packed:
            kind = c_type(arg.dtype, Target.CUDA)
            lines += [
                f"Pack<{kind}, VECTOR> {_kept(arg)}[KEEP ? CHUNKS : 1];",
                "if constexpr (KEEP)",
                "#pragma unroll",
                "  for (int c = 0; c < CHUNKS; ++c)",
                f"    {_kept(arg)}[KEEP ? c : 0] = {self._read_pack(arg, '(c * GROUP + lane) * VECTOR')};",
            ]
        return lines

    def _read_pack(self, arg: TensorArg, first: str) -> str:
        kind = c_type(arg.dtype, Target.CUDA)
        return f"load_pack<VECTOR, {kind}>({_pointer(arg)}, {first}, columns, {_aligned(arg)})"

    def _loop(self, names: Collection[str], steps: Sequence[Step], inner: Sequence[str], packs: Sequence[str],
              after: Sequence[str]) -> list[str]:  # fmt: skip
        """A pass over the row: ``inner`` at every element after the steps, ``packs`` before and ``after`` a pack."""
        used = [a for a in self.inputs if a.name in names and a.strides[-1] != 0]
        kept = self.keep and bool(self.packed)
        if kept:
            lines = [
                "#pragma unroll (KEEP ? CHUNKS : 1)",
                "for (int c = 0; c < CHUNKS; ++c) {",
                "  const int first = (c * GROUP + lane) * VECTOR;",
            ]
        else:
            lines = ["for (int first = lane * VECTOR; first < columns; first += GROUP * VECTOR) {"]
        for arg in used:
            if arg.strides[-1] == 1:
                kind = c_type(arg.dtype, Target.CUDA)
                read = self._read_pack(arg, "first")
                read = f"KEEP ? {_kept(arg)}[KEEP ? c : 0] : {read}" if kept else read
                lines.append(f"  const Pack<{kind}, VECTOR> in_{variable(arg.name)} = {read};")
        lines += ["  " + x for x in packs]
        lines += ["#pragma unroll", "  for (int j = 0; j < VECTOR; ++j) {", "    if (first + j < columns) {"]
        for arg in used:
            at = address(arg, self.space.indices("(first + j)"))
            source = f"in_{variable(arg.name)}.v[j]" if arg.strides[-1] == 1 else f"{arg.name}[{at}]"
            lines.append(f"      const float {variable(arg.name)} = {load(source, Target.CUDA)};")
        lines += ["      " + line(s, self.spec.scalars, Target.CUDA) for s in steps]
        lines += ["      " + x for x in inner]
        return [*lines, "    }", "  }", *("  " + x for x in after), "}"]

    def _element_steps(self, wanted: Collection[str]) -> tuple[tuple[Step, ...], set[str]]:
        """Steps a pass has to compute for ``wanted``, and the inputs they read."""
        steps = tuple(s for s in needed(self.steps, wanted) if s.out not in self.rowwise)
        return steps, read_names(steps, wanted)

    def _reduction(self, phase: Reduce) -> list[str]:
        out = variable(phase.out)
        steps, names = self._element_steps({phase.value})
        read = phase.value if phase.value in self.spec.scalars else variable(phase.value)
        if phase.kind in (Reduction.SUM, Reduction.MEAN):
            lines = [f"float sum_{out} = 0.0f;"]
            lines += self._loop(names, steps, [f"part += {read};"], ["float part = 0.0f;"], [f"sum_{out} += part;"])
            total = f"group_sum<GROUP>(sum_{out})"
            mean = " / float(columns)" if phase.kind is Reduction.MEAN else ""
            return [*lines, f"const float {out} = {total}{mean};"]
        largest = "true" if phase.kind is Reduction.MAX else "false"
        start = "0xff800000" if phase.kind is Reduction.MAX else "0x7f800000"
        lines = [f"float found_{out} = __int_as_float({start});"]
        lines += self._loop(names, steps, [f"found_{out} = extreme<{largest}>(found_{out}, {read});"], [], [])
        return [*lines, f"const float {out} = group_extreme<GROUP, {largest}>(found_{out});"]

    def _row_stores(self) -> list[str]:
        lines = ["if (lane == 0) {"]
        for store in self.space.seen_stores(self.spec.row_stores):
            name = store.value if store.value in self.spec.scalars else variable(store.value)
            at = address(store.to, self.space.indices("0"))
            lines.append(f"  {store.to.name}[{at}] = {convert(name, store.to.dtype, Target.CUDA)};")
        return [*lines, "}"]

    def _last_pass(self) -> list[str]:
        if not self.stores:
            return []
        steps, names = self._element_steps({s.value for s in self.stores})
        inner: list[str] = []
        packs: list[str] = []
        after: list[str] = []
        for n, store in enumerate(self.stores):
            kind = c_type(store.to.dtype, Target.CUDA)
            name = store.value if store.value in self.spec.scalars else variable(store.value)
            made = convert(name, store.to.dtype, Target.CUDA)
            if store.to.strides[-1] == 1:
                packs.append(f"Pack<{kind}, VECTOR> out_{n} = {{}};")
                inner.append(f"out_{n}.v[j] = {made};")
                after.append(
                    f"store_pack<VECTOR, {kind}>({_pointer(store.to)}, first, columns, {_aligned(store.to)}, out_{n});"
                )
            else:
                at = address(store.to, self.space.indices("(first + j)"))
                inner.append(f"{store.to.name}[{at}] = {made};")
        return self._loop(names, steps, inner, packs, after)


def _pointer(arg: TensorArg) -> str:
    return f"row_of_{variable(arg.name)}"


def _aligned(arg: TensorArg) -> str:
    return f"aligned_{variable(arg.name)}"


def _kept(arg: TensorArg) -> str:
    return f"kept_{variable(arg.name)}"


def _plain(start: str) -> str:
    """The start of a row: the index 0 along the last dim adds nothing."""
    return start.replace(" + size_t(0)", "").replace("size_t(0)", "0")


__all__ = ["KEPT_ELEMENTS", "Store", "row_stage"]
