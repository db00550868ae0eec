"""The graph of a captured call: nodes in an order they can run in, values, and who uses what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from generator.ir.node import Node
from generator.ir.value import Value, ValueKind


class GraphError(ValueError):
    """A graph that is not one: an edge to nothing, an order that cannot run, a name used twice."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured call, without any object of the framework.

    ``nodes`` are in topological order. ``extents`` gives the range, inclusive, of every size symbol. ``inputs`` lists
    arguments, parameters, buffers and constants in the exporter's order; ``outputs`` may repeat a value or pass an
    input through. Building one checks it; raises GraphError.
    """

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    extents: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _by_id: Mapping[str, Node] = field(init=False, repr=False, compare=False)
    _consumers: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _position: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        object.__setattr__(self, "extents", MappingProxyType(dict(self.extents)))
        object.__setattr__(self, "_by_id", MappingProxyType({node.id: node for node in self.nodes}))
        object.__setattr__(self, "_position", MappingProxyType({n.id: i for i, n in enumerate(self.nodes)}))
        consumers: dict[str, list[str]] = {value: [] for value in self.values}
        known = set(self.inputs)
        if len(self._by_id) != len(self.nodes):
            raise GraphError("two nodes have the same id")
        for value in self.inputs:
            if value not in self.values or self.values[value].kind is ValueKind.COMPUTED:
                raise GraphError(f"input '{value}' is no value that the graph is given")
        for node in self.nodes:
            for value in node.inputs:
                if value not in known:
                    raise GraphError(f"{node.id} ({node.op}) reads '{value}' before anything computes it")
                consumers[value].append(node.id)
            for value in node.outputs:
                if value in known or value not in self.values or self.values[value].producer != node.id:
                    raise GraphError(f"{node.id} ({node.op}) makes '{value}', which is another's or unknown")
                known.add(value)
        for value in self.outputs:
            if value not in known:
                raise GraphError(f"output '{value}' is computed by nothing")
        object.__setattr__(self, "_consumers", MappingProxyType({v: tuple(ids) for v, ids in consumers.items()}))

    def node(self, node_id: str) -> Node:
        """The node of this id. Raises KeyError."""
        return self._by_id[node_id]

    def position(self, node_id: str) -> int:
        """Where the node stands in the topological order. Raises KeyError."""
        return self._position[node_id]

    def producer(self, value_id: str) -> Node | None:
        """The node that computes a value, None for what the graph is given. Raises KeyError."""
        producer = self.values[value_id].producer
        return None if producer is None else self._by_id[producer]

    def users(self, value_id: str) -> tuple[Node, ...]:
        """Nodes that read a value, in order; being an output of the graph is not a use. Raises KeyError."""
        return tuple(self._by_id[node] for node in self._consumers[value_id])

    def consumers(self, node_id: str) -> tuple[Node, ...]:
        """Nodes that read any output of a node, in order, each once. Raises KeyError."""
        found = {user: None for value in self._by_id[node_id].outputs for user in self._consumers[value]}
        return tuple(self._by_id[user] for user in sorted(found, key=self._position.__getitem__))

    def producers(self, node_id: str) -> tuple[Node, ...]:
        """Nodes whose outputs a node reads, in order, each once. Raises KeyError."""
        made = (self.producer(value) for value in self._by_id[node_id].inputs)
        found = {node.id: None for node in made if node is not None}
        return tuple(self._by_id[node] for node in sorted(found, key=self._position.__getitem__))

    def root(self, value_id: str) -> Value:
        """The value that owns the storage: itself unless it is a view. Raises KeyError."""
        value = self.values[value_id]
        return value if value.alias_of is None else self.values[value.alias_of]

    def crossing(self, nodes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Values that a set of nodes reads from outside it, and values it makes that anything outside reads.

        A value that the graph returns is read from outside.
        """
        inside = set(nodes)
        ordered = sorted(inside, key=self._position.__getitem__)
        made = dict.fromkeys(value for node in ordered for value in self._by_id[node].outputs)
        read = dict.fromkeys(v for node in ordered for v in self._by_id[node].inputs if v not in made)
        returned = set(self.outputs)
        seen = tuple(v for v in made if v in returned or any(user not in inside for user in self._consumers[v]))
        return tuple(read), seen
