"""What a program is made of. Nothing here is an object of the framework, so a program pickles and compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kb.expr import Expr


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the program."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """An integer argument that depends on a dim: the text of a kb.expr expression."""

    text: str


# A str that starts with "torch." names an attribute of torch; any other str is itself.
Argument = Ref | Size | int | float | bool | str | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One operator call, such as ``aten.mul.Tensor``. ``outputs`` names what it makes."""

    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: tuple[str, ...]


class Content(StrEnum):
    """What a tensor holds when a call is tried."""

    ACTIVATION = "activation"  # the distribution asked for
    POSITIVE = "positive"  # its absolute value, away from zero
    WEIGHT = "weight"  # normal, of a size that keeps the variance of what it multiplies
    GAMMA = "gamma"  # normal around one
    BIAS = "bias"  # normal, small
    INDEX = "index"  # integers from 0 to ``upper`` - 1
    FLAG = "flag"  # integers 0 and 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value of the program lies in a tensor of the contract, which is dense and row-major.

    ``stored`` is the tensor's shape. Seen as ``physical`` (same elements, sizes of one put back), it has the value's
    dims in the order ``order``; a size of one there that is larger in ``shape``, the value's own, is repeated. Sizes
    are expressions over the dims.
    """

    shape: tuple[Expr, ...]
    physical: tuple[Expr, ...]
    order: tuple[int, ...]
    stored: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that is read: its name in the contract, the program's value, its layout, and what it holds."""

    tensor: str
    value: str
    layout: Layout
    content: Content
    upper: Expr = field(default_factory=lambda: Expr("1"))


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that is written: its name in the contract, the program's value, and its layout.

    ``rounded``: the narrow type it is stored in, where steps of the program read it again; else empty. What they read
    is then what was stored, as it is for whoever reads the tensor.
    """

    tensor: str
    value: str
    layout: Layout
    rounded: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in an order they can run in, from ``inputs`` to ``outputs``."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    def input(self, tensor: str) -> Input | None:
        """The input that is called ``tensor`` in the contract; None when there is none."""
        return next((i for i in self.inputs if i.tensor == tensor), None)

    def uses(self, value: str) -> int:
        """How many steps read ``value``."""
        return sum(any(value in names(a) for a in (*s.args, *(v for _, v in s.kwargs))) for s in self.steps)


def names(argument: Argument) -> frozenset[str]:
    """The values an argument mentions."""
    if isinstance(argument, Ref):
        return frozenset({argument.name})
    if isinstance(argument, tuple):
        return frozenset().union(*(names(a) for a in argument)) if argument else frozenset()
    return frozenset()
