"""State of one lowering: the steps so far, and what every value of the region has become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from generator.ir import Graph, Node, ValueRef
from generator.kernel_templates.specs import Op, Operand, Reduce, Reduction, Step
from generator.regions.axes import Axes, Axis, Dims
from generator.regions.spaces import Product
from generator.regions.unsupported import UnsupportedRegionError
from kb.dtype import DType


@dataclass(frozen=True, slots=True)
class Term:
    """A value inside the region: the step, input or number that holds an element of it, and what its dims run along."""

    operand: Operand
    dims: Dims


@dataclass(slots=True)
class Lowering:
    """State of one lowering, written to by the operators in graph order."""

    graph: Graph
    named: Mapping[str, str]  # value id -> tensor of the contract
    outside: frozenset[str]  # values that are returned and used by nothing in the region
    axes: Axes = field(default_factory=Axes)
    terms: dict[str, Term] = field(default_factory=dict)
    phases: list[Step | Reduce] = field(default_factory=list)
    reduced: list[tuple[Axis, ...]] = field(default_factory=list)
    product: Product | None = None

    def emit(self, op: Op, args: Sequence[Operand], dtype: DType | None = None) -> str:
        """Add a step; the name of its result."""
        name = f"s{len(self.phases)}"
        self.phases.append(Step(name, op, tuple(args), dtype))
        return name

    def reduce(self, kind: Reduction, value: Operand) -> str:
        """Add a reduction; the name of its result. Whoever calls notes the axes in ``reduced``."""
        name = f"s{len(self.phases)}"
        if not isinstance(value, str):
            raise UnsupportedRegionError("a reduction of a constant")
        self.phases.append(Reduce(name, kind, value))
        return name

    def term(self, value_id: str) -> Term:
        """The term of a value; one that is read from outside gets axes of its own at first sight."""
        if value_id not in self.terms:
            value = self.graph.values[value_id]
            self.terms[value_id] = Term(self.named[value_id], self.axes.fresh(value.shape))
        return self.terms[value_id]

    def argument(self, node: Node, index: int) -> Term:
        """The term of a positional argument that is a tensor. Raises UnsupportedRegionError."""
        arg = node.args[index] if index < len(node.args) else None
        if not isinstance(arg, ValueRef):
            raise UnsupportedRegionError(f"{node.op} without a tensor as argument {index}")
        return self.term(arg.id)


__all__ = ["Lowering", "Term"]
