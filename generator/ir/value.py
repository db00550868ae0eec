"""What flows along an edge: a tensor, with its shape, element type, layout, origin and aliasing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# A size: a number, or the text of an expression over the graph's size symbols, such as "s0" or "4*s0".
Extent = int | str

# Bytes an element of every dtype a value may have; a dtype that is not here has no kernel.
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


class ValueKind(StrEnum):
    """Where a value comes from."""

    INPUT = "input"  # an argument of the call
    PARAMETER = "parameter"  # trained, never changes
    BUFFER = "buffer"  # state of the module
    CONSTANT = "constant"  # a tensor written into the module's code
    COMPUTED = "computed"  # an output of a node


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph.

    ``strides`` are in elements. ``producer`` is the id of the node that computes it, None for what the graph is given.
    ``alias_of`` is the id of the value whose storage it shares (the root of the chain, never another view), else None.
    ``name`` is the qualified name of a parameter, buffer or constant, and the argument's name of an input.
    """

    id: str
    shape: tuple[Extent, ...]
    dtype: str
    strides: tuple[Extent, ...]
    kind: ValueKind
    name: str = ""
    producer: str | None = None
    alias_of: str | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions; 0 for a scalar tensor."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True where every size is a number."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def is_contiguous(self) -> bool:
        """True where the layout is dense and row-major; dimensions of size 1 may have any stride.

        A layout with symbolic strides counts as contiguous when each stride's text is the product of the sizes after
        it as capture writes it, which is how an exporter writes dense layouts.
        """
        return all(
            extent == 1 or str(stride) == str(dense)
            for extent, stride, dense in zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        )


def dense_strides(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Row-major strides, in elements, of a dense tensor of this shape."""
    strides: list[Extent] = []
    running: Extent = 1
    for extent in reversed(shape):
        strides.append(running)
        running = product(running, extent)
    return tuple(reversed(strides))


def product(a: Extent, b: Extent) -> Extent:
    """The product of two sizes, numbers first: ``64*s0``."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    factors = str(a).split("*") + str(b).split("*")
    if any(not factor.isidentifier() and not factor.isdigit() for factor in factors):
        return f"({a})*({b})"
    number = 1
    for factor in factors:
        number *= int(factor) if factor.isdigit() else 1
    names = sorted(factor for factor in factors if not factor.isdigit())
    return "*".join([str(number)] * (number != 1) + names)
