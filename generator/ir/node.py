"""What happens at a point of the graph: one operator, its arguments, what it makes and what it overwrites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from generator.ir.value import Extent


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An argument that is a value of the graph."""

    id: str


@dataclass(frozen=True, slots=True)
class Size:
    """An integer argument that depends on a symbolic size: the text of an expression over the graph's symbols."""

    text: str


# A str that starts with "torch." names an attribute of torch (a dtype, a layout, a memory format); any other str is
# itself, a device for instance. Lists become tuples.
Arg = ValueRef | Size | int | float | bool | str | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class Location:
    """A line of source that the node comes from."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call, such as ``aten.mm.default``.

    ``module`` is the qualified path of the module whose forward made the call, empty at the root. ``mutates`` lists
    the values whose storage the call overwrites. A node never has a value both in ``outputs`` and among its arguments.
    """

    id: str
    op: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    where: Location | None = None
    module: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Ids of the values it reads, in argument order, each once."""
        found = dict.fromkeys(ref.id for arg in (*self.args, *(a for _, a in self.kwargs)) for ref in references(arg))
        return tuple(found)

    @property
    def output(self) -> str:
        """The only output. Raises ValueError when there are none or several."""
        if len(self.outputs) != 1:
            raise ValueError(f"{self.id} ({self.op}) has {len(self.outputs)} outputs, not one")
        return self.outputs[0]

    @property
    def target(self) -> str:
        """The operator without its overload: ``aten.mm`` of ``aten.mm.default``."""
        return self.op.rsplit(".", 1)[0] if self.op.count(".") > 1 else self.op

    def kwarg(self, name: str, default: Arg = None) -> Arg:
        """The keyword argument, or ``default``."""
        return next((value for key, value in self.kwargs if key == name), default)


def references(arg: Arg) -> Iterator[ValueRef]:
    """Every value an argument mentions, in order."""
    if isinstance(arg, ValueRef):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from references(item)


def as_extent(arg: Arg) -> Extent | None:
    """The size an argument stands for, or None when it is no size."""
    if isinstance(arg, Size):
        return arg.text
    if isinstance(arg, int) and not isinstance(arg, bool):
        return arg
    return None
