"""Index algebra: which axes of the iteration space every dim of every value of a region runs along.

A dim of size one runs along no axis; a dim that a view has merged runs along several, outermost first. Axes are
split and identified as the region's operators ask for it, and what is left in the end is the iteration space.
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.ir import Extent
from generator.regions.unsupported import UnsupportedRegionError

Axis = int
Dims = tuple[tuple[Axis, ...], ...]


class Axes:
    """Axes so far. All methods raise UnsupportedRegionError where shapes do not fit together."""

    def __init__(self) -> None:
        self._extents: list[Extent] = []
        self._became: dict[Axis, tuple[Axis, ...]] = {}

    def extent(self, axis: Axis) -> Extent:
        """Size of a leaf."""
        return self._extents[axis]

    def fresh(self, shape: Sequence[Extent]) -> Dims:
        """Dims along axes of their own."""
        return tuple(() if str(extent) == "1" else (self._new(extent),) for extent in shape)

    def leaves(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """What ``axes`` are now, outermost first."""
        found: list[Axis] = []
        for axis in axes:
            found.extend(self.leaves(self._became[axis]) if axis in self._became else (axis,))
        return tuple(found)

    def unify(self, first: Sequence[Axis], second: Sequence[Axis]) -> None:
        """Make two ways to run through equally many elements, in the same order, the same."""
        while True:
            a, b = self.leaves(first), self.leaves(second)
            at = next((i for i in range(min(len(a), len(b))) if a[i] != b[i]), None)
            if at is None:
                if len(a) != len(b):
                    raise UnsupportedRegionError("shapes that do not fit together")
                return
            self._match(a[at], b[at])

    def broadcast(self, operands: Sequence[Dims]) -> Dims:
        """Dims of an elementwise result."""
        rank = max((len(dims) for dims in operands), default=0)
        result: list[tuple[Axis, ...]] = []
        for i in range(rank):
            along: tuple[Axis, ...] = ()
            for dims in operands:
                place = i - (rank - len(dims))
                if place < 0 or not dims[place]:
                    continue
                if along:
                    self.unify(along, dims[place])
                along = along or dims[place]
            result.append(along)
        return tuple(result)

    def view(self, dims: Dims, shape: Sequence[Extent]) -> Dims:
        """Dims of a reshape to ``shape``."""
        new = self.fresh(shape)
        self.unify([a for d in dims for a in d], [a for d in new for a in d])
        return new

    def expand(self, dims: Dims, shape: Sequence[Extent]) -> Dims:
        """Dims of an expansion to ``shape``: what is repeated runs along a new axis."""
        old = (*([()] * (len(shape) - len(dims))), *dims)
        return tuple(o or n for o, n in zip(old, self.fresh(shape), strict=True))

    def _new(self, extent: Extent) -> Axis:
        self._extents.append(extent)
        return len(self._extents) - 1

    def _match(self, a: Axis, b: Axis) -> None:
        """Make leaf ``a`` and leaf ``b`` begin with the same leaf."""
        size_a, size_b = self._extents[a], self._extents[b]
        if str(size_a) == str(size_b):
            self._became[b] = (a,)
        elif isinstance(size_a, int) and isinstance(size_b, int) and size_a % size_b == 0:
            self._became[a] = (b, self._new(size_a // size_b))
        elif isinstance(size_a, int) and isinstance(size_b, int) and size_b % size_a == 0:
            self._became[b] = (a, self._new(size_b // size_a))
        else:
            raise UnsupportedRegionError(f"a view that does not split {size_a} and {size_b} evenly")


__all__ = ["Axes", "Axis", "Dims"]
