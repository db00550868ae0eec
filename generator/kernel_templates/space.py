"""Iteration spaces: neighbouring dims that every tensor walks through as one are made one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from generator.kernel_templates.sizes import Size, product, same, text
from generator.kernel_templates.specs import Store, TensorArg


@dataclass(frozen=True, slots=True)
class Space:
    """A space of fewer dims, and the tensors as seen over it. ``shape``: its extents, the last one ``inner``."""

    shape: tuple[Size, ...]
    strides: tuple[tuple[str, tuple[Size, ...]], ...]

    @property
    def outer(self) -> tuple[Size, ...]:
        """All extents but the last."""
        return self.shape[:-1]

    @property
    def inner(self) -> Size:
        """The last extent."""
        return self.shape[-1]

    def seen(self, args: Sequence[TensorArg]) -> tuple[TensorArg, ...]:
        """``args`` with their strides over this space."""
        known = dict(self.strides)
        return tuple(replace(a, strides=known[_key(a)]) for a in args)

    def seen_stores(self, stores: Sequence[Store]) -> tuple[Store, ...]:
        """``stores`` with the strides of their tensors over this space."""
        return tuple(replace(s, to=self.seen((s.to,))[0]) for s in stores)

    def coordinates(self, row: str) -> list[str]:
        """Definitions of ``i0``, ``i1`` … from the number of a row, as C."""
        lines, rest = [], row
        for axis in reversed(range(len(self.outer))):
            if axis == 0:
                lines.append(f"const long long i0 = {rest};")
                continue
            size = text(self.outer[axis])
            lines.append(f"const long long i{axis} = {rest} % {size};")
            below = f"below{axis}"
            lines.append(f"const long long {below} = {rest} / {size};")
            rest = below
        return lines

    def indices(self, last: str) -> tuple[str, ...]:
        """Names of the coordinates, ``last`` along the last dim."""
        return (*(f"i{axis}" for axis in range(len(self.outer))), last)


def collapse(shape: Sequence[Size], *groups: Sequence[TensorArg], keep_last: bool = False) -> Space:
    """The space of least dims. ``keep_last``: the last dim stays by itself, because it is reduced."""
    args = [a for group in groups for a in group]
    strides = {_key(a): list(a.strides) for a in args}
    sizes = list(shape)
    axis = len(sizes) - (3 if keep_last else 2)
    while axis >= 0:
        # axis and axis + 1 walk as one where a step of the outer is a whole round of the inner, for every tensor.
        if all(same(s[axis], product([s[axis + 1], sizes[axis + 1]])) for s in strides.values()) or sizes[axis] == 1:
            sizes[axis : axis + 2] = [product(sizes[axis : axis + 2])]
            for s in strides.values():
                del s[axis]
        axis -= 1
    if len(sizes) > 1 and sizes[0] == 1 and not keep_last:
        del sizes[0]
        for s in strides.values():
            del s[0]
    return Space(tuple(sizes), tuple((key, tuple(s)) for key, s in strides.items()))


def _key(arg: TensorArg) -> str:
    return f"{arg.name}/{arg.offset}/{arg.strides}"
