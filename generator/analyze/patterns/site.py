"""What every pattern needs: the graph with its structures, and the step from dims to a match or a skip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import RESHAPES, SUBSETS
from generator.analyze.structures import Linear, Structures
from generator.analyze.trail import common_module, origin
from generator.ir import Extent, Graph, product
from kb.contract import Contract, DimKind

# What a dim is taken for where the graph leaves it open: one token a step, and the engine's own block of the cache.
OPEN_DIMS = {"num_tokens": 1, "batch_size": 1, "seq_len": 128, "block_size": 16}


@dataclass(frozen=True, slots=True)
class Site:
    """One graph, with everything found in it."""

    graph: Graph
    structures: Structures

    def rows_of(self, value: str) -> Extent:
        """Rows of a value: the product of all its sizes but the last."""
        rows: Extent = 1
        for size in self.graph.values[value].shape[:-1]:
            rows = product(rows, size)
        return rows

    def dtype_of(self, value: str) -> str:
        """Element type of a value."""
        return self.graph.values[value].dtype

    def projection_of(self, value: str) -> tuple[Linear | None, tuple[str, ...]]:
        """The projection that a value is a view or a part of, and the nodes in between."""
        trail = origin(self.graph, value, RESHAPES | SUBSETS)
        return self.structures.linears.get(trail.value), trail.nodes

    def read_elsewhere(self, value: str, inside: Iterable[str]) -> str | None:
        """Who else reads a value: a node that is not inside, or ``the caller`` where the graph returns it."""
        known = set(inside)
        if value in self.graph.outputs:
            return "the caller"
        return next((f"{user.op} ({user.id})" for user in self.graph.users(value) if user.id not in known), None)

    def in_order(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Nodes, each once, in graph order."""
        return tuple(sorted(set(nodes), key=self.graph.position))

    def skip(self, nodes: Sequence[str], reason: str) -> Skip:
        """A place that is not the pattern, and why."""
        ordered = self.in_order(nodes)
        return Skip(common_module(self.graph, ordered), reason, ordered)

    def conclude(
        self,
        contract: Contract,
        nodes: Iterable[str],
        dims: Mapping[str, Extent | bool],
        storage: str,
        notes: Sequence[str] = (),
    ) -> Match | Skip:
        """A match when the contract takes these dims and this element type, else the reason that it does not.

        Static dims that are missing or symbolic are taken from OPEN_DIMS and named in ``assumed``.
        """
        ordered = self.in_order(nodes)
        if storage not in {dtype.value for dtype in contract.dtypes.storage}:
            return self.skip(ordered, f"elements are {storage}, which the contract does not store")
        values: dict[str, int] = {}
        assumed: list[str] = []
        for name in contract.dims_of(DimKind.STATIC, DimKind.FLAG):
            given = dims.get(name)
            if isinstance(given, int):
                values[name] = int(given)
            elif name in OPEN_DIMS:
                values[name] = OPEN_DIMS[name]
                assumed.append(name)
            else:
                return self.skip(ordered, f"{name} is {given}, which depends on a dynamic size")
        failed = _failed(contract, values)
        if failed is not None:
            return self.skip(ordered, failed)
        module = common_module(self.graph, ordered)
        return Match(ordered, module, values, storage, tuple(assumed), tuple(notes))


def result(contract: Contract, judged: Sequence[Match | Skip], absent: str) -> PatternResult:
    """The result of all places that were looked at; ``absent`` is the reason where there were none."""
    found = tuple(item for item in judged if isinstance(item, Match))
    skipped = tuple(item for item in judged if isinstance(item, Skip))
    return PatternResult(contract.id, found, skipped if judged else (Skip("", absent),))


def _failed(contract: Contract, values: Mapping[str, int]) -> str | None:
    """The first condition on dims that does not hold, named as the contract names it."""

    def shown(names: Iterable[str]) -> str:
        return ", ".join(f"{name} = {values[name]}" for name in sorted(names))

    for precondition in contract.preconditions:
        expr = precondition.dims
        if expr is not None and set(expr.names) <= set(values) and not expr.evaluate(values):
            return f"{precondition.name}: {expr} does not hold for {shown(expr.names)}"
    for constraint in contract.constraints:
        if set(constraint.names) <= set(values) and not constraint.evaluate(values):
            return f"the constraint {constraint} does not hold for {shown(constraint.names)}"
    for name, value in values.items():
        dim = contract.dims[name]
        most = 1 if dim.kind is DimKind.FLAG else dim.max
        least = 0 if dim.kind is DimKind.FLAG else dim.min
        if value < least or (most is not None and value > most):
            return f"{name} = {value} is outside {least} to {most}"
    return None
