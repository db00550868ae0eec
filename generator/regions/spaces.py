"""From steps and strides by axis to a spec over as few dims as the tensors allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from generator.kernel_templates.sizes import Size, dense_strides, product, same, value
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemmSpec,
    Operand,
    Reduce,
    RowSpec,
    Step,
    Store,
    TensorArg,
)
from generator.regions.axes import Axes, Axis
from generator.regions.unsupported import UnsupportedRegionError
from kb.dtype import DType


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the contract: stride by axis (axes that are not there do not move it), and who holds its element."""

    name: str
    dtype: DType
    strides: Mapping[Axis, Size]
    operand: Operand


@dataclass(frozen=True, slots=True)
class Product:
    """The product of matrices in a region: its inputs' tensors and the axes of rows, columns and sums."""

    x: str
    weight: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    sums: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _Space:
    """Dims that the axes were collapsed to: sizes, and strides by tensor."""

    shape: tuple[Size, ...]
    strides: Mapping[str, tuple[Size, ...]]

    def arg(self, placed: Placed) -> TensorArg:
        return TensorArg(placed.name, placed.dtype, self.strides[placed.name])

    def store(self, placed: Placed) -> Store:
        if not isinstance(placed.operand, str):
            raise UnsupportedRegionError(f"'{placed.name}' is a constant")
        return Store(self.arg(placed), placed.operand)


def elementwise_spec(
    axes: Axes, inputs: Sequence[Placed], outputs: Sequence[Placed], steps: Sequence[Step | Reduce]
) -> ElementwiseSpec:
    """A chain of scalar steps over the axes of the outputs, in the order the first output lies in memory."""
    order = _memory_order(outputs[0])
    _check_cover(order, outputs)
    _check_known(order, inputs)
    space = _collapse(axes, [order], [*inputs, *outputs])
    return ElementwiseSpec(
        space.shape,
        tuple(space.arg(p) for p in inputs),
        tuple(s for s in steps if isinstance(s, Step)),
        tuple(space.store(p) for p in outputs),
    )


def row_spec(
    axes: Axes,
    reduced: tuple[Axis, ...],
    inputs: Sequence[Placed],
    outputs: Sequence[Placed],
    phases: Sequence[Step | Reduce],
) -> RowSpec:
    """Steps and reductions over ``reduced``, which becomes the last dim."""
    widest = max((*outputs, *inputs), key=lambda p: len(p.strides))
    rows = [a for a in _memory_order(widest) if a not in reduced]
    full = [p for p in outputs if set(p.strides) >= set(reduced)]
    once = [p for p in outputs if not set(p.strides) & set(reduced)]
    if len(full) + len(once) != len(outputs):
        raise UnsupportedRegionError("a result that runs along a part of what is reduced")
    _check_cover([*rows, *reduced], full)
    _check_cover(rows, once)
    _check_known([*rows, *reduced], inputs)
    space = _collapse(axes, [rows, reduced], [*inputs, *outputs])
    if len(space.shape) - _rank(axes, rows, [*inputs, *outputs]) != 1:
        raise UnsupportedRegionError("a reduction over elements that are not evenly spaced")
    return RowSpec(
        space.shape,
        tuple(space.arg(p) for p in inputs),
        tuple(phases),
        tuple(space.store(p) for p in full),
        tuple(space.store(p) for p in once),
    )


def product_spec(
    factors: Product, axes: Axes, inputs: Sequence[Placed], outputs: Sequence[Placed], steps: Sequence[Step | Reduce]
) -> GemmSpec:
    """A product of matrices whose rows lie one after the other, with what follows element by element."""
    rows, columns, sums = (axes.leaves(a) for a in (factors.rows, factors.columns, factors.sums))
    by_name = {p.name: p for p in inputs}
    x, weight = by_name[factors.x], by_name[factors.weight]
    _check_dense(axes, x, (*rows, *sums), "the rows of the product's first factor")
    _check_dense(axes, weight, (*columns, *sums), "the rows of the weight")
    rest = [p for p in inputs if p not in (x, weight)]
    if any(arg in (x.name, weight.name) for s in steps if isinstance(s, Step) for arg in s.args):
        raise UnsupportedRegionError("a factor of the product is used again after it")
    _check_cover([*rows, *columns], outputs)
    _check_known([*rows, *columns], rest)
    space = _collapse(axes, [rows, columns], [*rest, *outputs])
    if len(space.shape) != 2:
        raise UnsupportedRegionError("results of a product that are not evenly spaced")
    return GemmSpec(
        m=space.shape[0],
        n=space.shape[1],
        k=product([axes.extent(a) for a in sums]),
        x=x.name,
        weight=weight.name,
        stores=tuple(space.store(p) for p in outputs),
        inputs=tuple(space.arg(p) for p in rest),
        epilogue=tuple(s for s in steps if isinstance(s, Step)),
        dtype=x.dtype,
    )


def _memory_order(placed: Placed) -> list[Axis]:
    """Axes from the largest stride to the smallest where strides are numbers, as the dims come where they are not."""
    known = {axis: value(stride) for axis, stride in placed.strides.items()}
    if any(v is None for v in known.values()):
        return list(placed.strides)
    return sorted(placed.strides, key=lambda axis: -(known[axis] or 0))


def _check_cover(axes: Sequence[Axis], outputs: Sequence[Placed]) -> None:
    for placed in outputs:
        if set(placed.strides) != set(axes):
            raise UnsupportedRegionError("results of different sizes")


def _check_known(axes: Sequence[Axis], inputs: Sequence[Placed]) -> None:
    for placed in inputs:
        if not set(placed.strides) <= set(axes):
            raise UnsupportedRegionError(f"'{placed.name}' runs along an axis that no result has")


def _check_dense(axes: Axes, placed: Placed, order: Sequence[Axis], what: str) -> None:
    wanted = dense_strides([axes.extent(a) for a in order])
    if set(placed.strides) != set(order) or not all(
        same(placed.strides[a], w) for a, w in zip(order, wanted, strict=True)
    ):
        raise UnsupportedRegionError(f"{what} do not lie one after the other")


def _collapse(axes: Axes, groups: Sequence[Sequence[Axis]], tensors: Sequence[Placed]) -> _Space:
    """Neighbouring axes of a group become one dim where every tensor moves through both as through one."""
    shape: list[Size] = []
    strides: dict[str, list[Size]] = {p.name: [] for p in tensors}
    for group in groups:
        for dim in _merged(axes, group, tensors):
            extent = product([axes.extent(a) for a in dim])
            shape.append(extent)
            for p in tensors:
                strides[p.name].append(p.strides.get(dim[-1], 0) if dim else 0)
    return _Space(tuple(shape), {name: tuple(found) for name, found in strides.items()})


def _merged(axes: Axes, group: Sequence[Axis], tensors: Sequence[Placed]) -> list[list[Axis]]:
    """The axes of each dim of a group; one dim of no axes where the group has none."""
    dims: list[list[Axis]] = []
    for axis in group:
        if dims and all(_continues(axes, p, dims[-1][-1], axis) for p in tensors):
            dims[-1].append(axis)
        else:
            dims.append([axis])
    return dims or [[]]


def _continues(axes: Axes, placed: Placed, outer: Axis, inner: Axis) -> bool:
    a, b = placed.strides.get(outer, 0), placed.strides.get(inner, 0)
    return same(a, product([b, axes.extent(inner)]))


def _rank(axes: Axes, group: Sequence[Axis], tensors: Sequence[Placed]) -> int:
    return len(_merged(axes, group, tensors))


__all__ = ["Placed", "elementwise_spec", "product_spec", "row_spec"]
