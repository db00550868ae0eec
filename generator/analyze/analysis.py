"""What the analyzer says of a graph: regions, hard boundaries, and which contracts were found where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Category(StrEnum):
    """What a region computes."""

    ELEMENTWISE = "elementwise"
    ACTIVATION = "activation"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    NORM = "norm"
    ROTARY = "rotary"
    GEMM = "gemm"
    GEMV = "gemv"
    ATTENTION = "attention"
    LAYOUT = "layout"
    EMBEDDING = "embedding"
    FACTORY = "factory"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that one kernel could compute, in graph order.

    ``inputs`` are the values it reads from outside it, ``outputs`` those it makes that something outside reads.
    ``blocked`` says why no kernel may be generated for it; None where one may.
    """

    id: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    category: Category
    label: str
    blocked: str | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """A node that no kernel may cross, and why."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Match:
    """A contract's pattern at these nodes.

    ``dims`` holds every static and flag dim of the contract; ``assumed`` names those of them that the graph leaves
    open (a symbolic number of rows, the block size of a cache that is not paged yet). ``storage`` is the element type.
    """

    nodes: tuple[str, ...]
    module: str
    dims: Mapping[str, int]
    storage: str
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))


@dataclass(frozen=True, slots=True)
class Skip:
    """A place that looks like a contract's pattern and is not one, or (``module`` empty) the lack of any such place.

    ``reason`` starts with the name of the contract's precondition that fails, where one speaks of it.
    """

    module: str
    reason: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatternResult:
    """One contract against one graph."""

    contract: str
    found: tuple[Match, ...] = ()
    skipped: tuple[Skip, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything the analyzer says of one graph, in an order that depends on the graph alone."""

    regions: tuple[Region, ...]
    boundaries: tuple[Boundary, ...]
    patterns: tuple[PatternResult, ...] = ()
    _region_of: Mapping[str, Region] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {node: region for region in self.regions for node in region.nodes}
        object.__setattr__(self, "_region_of", MappingProxyType(found))

    def region_of(self, node_id: str) -> Region:
        """The region a node is in. Raises KeyError."""
        return self._region_of[node_id]

    def pattern(self, contract: str) -> PatternResult:
        """The result for a contract. Raises KeyError."""
        for result in self.patterns:
            if result.contract == contract:
                return result
        raise KeyError(contract)
