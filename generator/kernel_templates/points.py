"""Loads, steps and stores at one point, as C. The same for every template that ends in a scalar program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from generator.kernel_templates.program import c_type, line, needed, read_names, variable
from generator.kernel_templates.sizes import product, text
from generator.kernel_templates.specs import Step, Store, TensorArg
from kb.dtype import DType, Target


def address(arg: TensorArg, indices: Sequence[str], *, wide: str = "size_t") -> str:
    """Offset in elements of the point ``indices`` names, as C."""
    terms = [] if arg.offset == 0 else [text(arg.offset)]
    for index, stride in zip(indices, arg.strides, strict=True):
        stride = product([stride])
        if stride == 0:
            continue
        terms.append(f"{wide}({index})" if stride == 1 else f"{wide}({index}) * {text(stride)}")
    return " + ".join(terms) or "0"


def load(value: str, target: Target) -> str:
    """An element read, as float32."""
    return f"float({value})" if target is Target.CUDA else f"value_of({value})"


def convert(value: str, dtype: DType, target: Target) -> str:
    """float32 as an element of ``dtype``."""
    kind = c_type(dtype, target)
    if target is Target.CUDA or dtype in (DType.FLOAT32, DType.INT32, DType.INT64):
        return value if dtype is DType.FLOAT32 else f"{kind}({value})"
    return f"from_float<{kind}>({value})"


def point_lines(
    inputs: Sequence[TensorArg],
    steps: Sequence[Step],
    stores: Sequence[Store],
    scalars: Collection[str],
    indices: Sequence[str],
    target: Target,
    source: Callable[[TensorArg], str] | None = None,
) -> list[str]:
    """Everything at one point. Values a caller has defined itself (sums) are no inputs here.

    ``source``: how an input is read, its element of the tensor by default.
    """
    wanted = {s.value for s in stores}
    kept = needed(steps, wanted)
    names = read_names(kept, wanted)
    lines = []
    for arg in inputs:
        if arg.name in names:
            value = source(arg) if source else f"{arg.name}[{address(arg, indices)}]"
            lines.append(f"const float {variable(arg.name)} = {load(value, target)};")
    lines += [line(step, scalars, target) for step in kept]
    for store in stores:
        value = store.value if store.value in scalars else variable(store.value)
        lines.append(f"{store.to.name}[{address(store.to, indices)}] = {convert(value, store.to.dtype, target)};")
    return lines
