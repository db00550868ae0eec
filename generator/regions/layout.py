"""How a value of the graph lies in memory, as a dense tensor a kernel can be given."""

from __future__ import annotations

from collections.abc import Mapping

from generator.ir import Extent, Value
from generator.regions.unsupported import UnsupportedRegionError
from kb.expr import Expr, ExprError, parse
from runtime.programs import Layout

# Sizes that symbols are tried at when a layout is read: distinct primes, so that equal products are equal sizes.
_TRIAL = (101, 103, 107, 109, 113, 127, 131, 137)


def layout_of(value: Value) -> Layout:
    """The dense row-major tensor whose storage is ``value``'s.

    Dims may be in another order and may repeat (stride 0). Raises UnsupportedRegionError for a part of a larger tensor
    and for sizes that are no expression over the graph's symbols.
    """
    shape = [size_expr(extent) for extent in value.shape]
    strides = [size_expr(extent) for extent in value.strides]
    trial = _trial_sizes([*shape, *strides])
    sizes = [e.evaluate_int(trial) for e in shape]
    steps = [e.evaluate_int(trial) for e in strides]
    repeated = [size != 1 and step == 0 for size, step in zip(sizes, steps, strict=True)]
    real = [i for i, size in enumerate(sizes) if size != 1 and not repeated[i]]
    order = sorted(real, key=lambda i: -steps[i])
    running = 1
    for i in reversed(order):
        if steps[i] != running:
            raise UnsupportedRegionError(f"'{value.name or value.id}' is a strided part of a larger tensor")
        running *= sizes[i]
    order = _with_units(order, len(shape))
    one = Expr("1")
    physical = tuple(one if repeated[i] or sizes[i] == 1 else shape[i] for i in order)
    return Layout(tuple(shape), physical, tuple(order), _stored(physical))


def size_expr(extent: Extent) -> Expr:
    """A size as an expression over dims. Raises UnsupportedRegionError."""
    try:
        return parse(str(extent))
    except ExprError as error:
        raise UnsupportedRegionError(f"the size {extent} is no expression over dims ({error})") from None


def _trial_sizes(expressions: list[Expr]) -> Mapping[str, int]:
    names = sorted(set().union(*(e.names for e in expressions))) if expressions else []
    if len(names) > len(_TRIAL):
        raise UnsupportedRegionError(f"{len(names)} size symbols; {len(_TRIAL)} at most")
    return dict(zip(names, _TRIAL, strict=False))


def _with_units(order: list[int], rank: int) -> list[int]:
    """``order`` with the dims it leaves out (of size one, or repeated) put beside their neighbours."""
    complete = list(order)
    for i in range(rank):
        if i not in complete:
            before = [complete.index(j) for j in range(i) if j in complete]
            complete.insert(max(before) + 1 if before else 0, i)
    return complete


def _stored(physical: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Without sizes of one, so that a row of the tensor is a row of numbers; at least one size."""
    kept = tuple(e for e in physical if e.text != "1")
    return kept or (Expr("1"),)


__all__ = ["layout_of", "size_expr"]
