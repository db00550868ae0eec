"""From an attention back to the projections that feed it: what its queries, keys and values went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from generator.analyze.ops import CASTS, RESHAPES, SUBSETS
from generator.analyze.patterns.site import Site
from generator.analyze.structures import Attention, Linear, Norm, Rotary
from generator.analyze.trail import Trail, origin
from generator.ir import Extent

_BACK = RESHAPES | CASTS


@dataclass(frozen=True, slots=True)
class Head:
    """The way of queries, keys or values: projection, then norm, then rotation, as far as there are any.

    ``late_norm`` is a norm after the rotation. ``nodes`` are all nodes on the way, the projection's included.
    """

    linear: Linear | None
    norm: Norm | None
    rotary: Rotary | None
    late_norm: Norm | None
    nodes: tuple[str, ...]
    made_by: str  # the operator that the way back ended at, for a reason


@dataclass(frozen=True, slots=True)
class Heads:
    """The three ways into one attention."""

    q: Head
    k: Head
    v: Head

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes on the three ways."""
        return (*self.q.nodes, *self.k.nodes, *self.v.nodes)

    def read_one_input(self, site: Site, nodes: Sequence[str]) -> str | None:
        """None where all projections read the same rows and only ``nodes`` read the projections, else what is wrong."""
        ways = (("queries", self.q), ("keys", self.k), ("values", self.v))
        missing = next((f"the {name} come from {head.made_by}" for name, head in ways if head.linear is None), None)
        if missing is not None:
            return f"{missing}, not from a projection"
        if len({origin(site.graph, linear.x).value for linear in self.linears}) != 1:
            return "the projections read different rows"
        others = (site.read_elsewhere(linear.out, nodes) for linear in self.linears)
        other = next((other for other in others if other is not None), None)
        return None if other is None else f"a projection is also read by {other}"

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The distinct projections: one where it is joint."""
        found = {head.linear.out: head.linear for head in (self.q, self.k, self.v) if head.linear is not None}
        return tuple(found.values())


def heads_of(site: Site, attention: Attention) -> Heads:
    """The ways into ``attention``."""
    return Heads(
        q=_head(site, attention.q),
        k=_head(site, attention.keys),
        v=_head(site, attention.values),
    )


def kv_heads(site: Site, attention: Attention) -> Extent:
    """Heads of the new keys, before any of them is repeated; from how many elements there are, whatever their order."""
    elements = 1
    for size in site.graph.values[attention.keys.value].shape:
        elements *= size if isinstance(size, int) else 1
    for size in (attention.batch, attention.queries, attention.head_dim):
        elements //= size if isinstance(size, int) else 1
    return elements


def _head(site: Site, trail: Trail) -> Head:
    graph, found = site.graph, site.structures
    nodes = list(trail.nodes)
    value = trail.value

    def back() -> None:
        nonlocal value
        further = origin(graph, value, _BACK, until=found.norms)
        value = further.value
        nodes.extend(further.nodes)

    late_norm = found.norms.get(value)
    if late_norm is not None:
        rotated = origin(graph, late_norm.x, _BACK, until=found.rotaries)
        if rotated.value in found.rotaries:
            nodes.extend((*late_norm.nodes, *rotated.nodes))
            value = rotated.value
        else:
            late_norm = None
    rotary = found.rotaries.get(value)
    if rotary is not None:
        nodes.extend(rotary.nodes)
        value = rotary.x
    back()
    norm = found.norms.get(value)
    if norm is not None:
        nodes.extend(norm.nodes)
        value = norm.x
        back()
    linear = found.linears.get(value)
    if linear is None:
        part = origin(graph, value, _BACK | SUBSETS)
        linear = found.linears.get(part.value)
        if linear is not None:
            nodes.extend(part.nodes)
    if linear is not None:
        nodes.extend(linear.nodes)
    maker = graph.producer(value)
    return Head(linear, norm, rotary, late_norm, tuple(nodes), maker.op if maker is not None else "an argument")
