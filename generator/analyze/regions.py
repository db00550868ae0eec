"""Regions: nodes merged along use-def edges while one pass over the same rows can compute them.

Structures that mean one thing (a norm, a softmax, a rotation, an attention) start as one region; a projection takes
the simple arithmetic that alone reads it; then elementwise nodes, casts, activations and reductions of the last
dimension merge along their edges. Nothing crosses a hard boundary, and no merge may make two regions need each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from generator.analyze.analysis import Boundary, Region
from generator.analyze.boundaries import boundary, overwritten_roots
from generator.analyze.category import category_of, label_of
from generator.analyze.domain import Domain, domain_of, join
from generator.analyze.ops import ELEMENTWISE, LAYOUT, OpClass, classify
from generator.analyze.structures import Norm, Structures
from generator.ir import Graph, Node

_FUSIBLE = ELEMENTWISE | {OpClass.REDUCTION, OpClass.SOFTMAX, OpClass.NORM}


def find_regions(graph: Graph, structures: Structures) -> tuple[tuple[Region, ...], tuple[Boundary, ...]]:
    """A partition of the nodes, in an order the regions can run in, and the hard boundaries in node order."""
    overwritten = overwritten_roots(graph)
    blocked = {node.id: boundary(graph, node, overwritten) for node in graph.nodes}
    reasons = {node: reason for node, reason in blocked.items() if reason is not None}
    groups = _Groups(graph, reasons)
    _merge_structures(graph, structures, groups)
    _merge_epilogues(graph, structures, groups)
    _merge_edges(graph, groups)
    regions = tuple(
        _region(graph, structures, f"r{index}", nodes, reasons) for index, nodes in enumerate(groups.in_order())
    )
    return regions, tuple(Boundary(node.id, reasons[node.id]) for node in graph.nodes if node.id in reasons)


class _Groups:
    """Disjoint sets of nodes that grow by merging and never form a cycle."""

    def __init__(self, graph: Graph, reasons: Mapping[str, str]) -> None:
        self._graph = graph
        self.reasons = reasons
        self._group = {node.id: index for index, node in enumerate(graph.nodes)}
        self._members: dict[int, list[str]] = {index: [node.id] for index, node in enumerate(graph.nodes)}
        self._span = {index: (index, index) for index in self._members}  # first and last position of each group
        self.domains: dict[int, Domain | None] = {
            index: domain_of(graph, node) if node.id not in reasons else None for index, node in enumerate(graph.nodes)
        }
        self.closed: set[int] = set()  # groups that are what they are: nothing more may join
        self.wholes: set[int] = set()  # groups with a norm or a softmax in them: no two of them join

    def of(self, node: str) -> int:
        return self._group[node]

    def members(self, group: int) -> list[str]:
        return self._members[group]

    def merge(self, first: int, second: int) -> int:
        """Join two groups; returns the number of the group that holds both."""
        keep, gone = (first, second) if len(self._members[first]) >= len(self._members[second]) else (second, first)
        for node in self._members.pop(gone):
            self._group[node] = keep
            self._members[keep].append(node)
        spans = self._span[keep], self._span.pop(gone)
        if gone in self.wholes:
            self.wholes.remove(gone)
            self.wholes.add(keep)
        self._span[keep] = min(low for low, _ in spans), max(high for _, high in spans)
        return keep

    def can_join(self, first: int, second: int) -> bool:
        """True when no path leads from ``first`` through a third group to ``second``, which reads from it.

        Joined, such a path would make the group and the third one need each other.
        """
        last = self._span[second][1]
        seen = {first}
        frontier = self._following(first, last) - {second}
        while frontier:
            group = frontier.pop()
            seen.add(group)
            following = self._following(group, last)
            if second in following:
                return False
            frontier |= following - seen
        return True

    def in_order(self) -> list[tuple[str, ...]]:
        """The groups, each in node order, so that each comes after all that it reads from."""
        reads: dict[int, set[int]] = {
            group: {self.of(p.id) for node in nodes for p in self._graph.producers(node)} - {group}
            for group, nodes in self._members.items()
        }
        read_by: dict[int, list[int]] = {group: [] for group in reads}
        for group, needed in reads.items():
            for other in needed:
                read_by[other].append(group)
        ready = [(self._span[group], group) for group, needed in reads.items() if not needed]
        heapq.heapify(ready)
        ordered: list[tuple[str, ...]] = []
        while ready:
            _, group = heapq.heappop(ready)
            ordered.append(tuple(sorted(self._members[group], key=self._graph.position)))
            for other in read_by[group]:
                reads[other].discard(group)
                if not reads[other]:
                    heapq.heappush(ready, (self._span[other], other))
        return ordered

    def _following(self, group: int, last: int) -> set[int]:
        """Groups that read from this one and start no later than ``last``."""
        users = (user.id for node in self._members[group] for user in self._graph.consumers(node))
        found = {self.of(user) for user in users} - {group}
        return {other for other in found if self._span[other][0] <= last}


def _merge_structures(graph: Graph, structures: Structures, groups: _Groups) -> None:
    wholes: list[tuple[tuple[str, ...], bool]] = [
        *((item.nodes, True) for item in structures.rotaries.values()),
        *((_with_sum(graph, structures, item), False) for item in structures.norms.values()),
        *((item.nodes, False) for item in structures.softmaxes.values()),
    ]
    for nodes, closed in wholes:
        if any(node in groups.reasons for node in nodes) or len({groups.of(n) for n in nodes}) != len(nodes):
            continue
        if not _is_convex(graph, nodes):
            continue
        group = groups.of(nodes[0])
        domain = groups.domains[group]
        for node in nodes[1:]:
            other = groups.of(node)
            domain = join(domain, groups.domains[other])
            group = groups.merge(group, other)
        groups.domains[group] = None if closed else domain
        groups.wholes.add(group)
        if closed:
            groups.closed.add(group)


def _with_sum(graph: Graph, structures: Structures, norm: Norm) -> tuple[str, ...]:
    """A norm with the residual add in front of it, unless a projection takes that as its epilogue."""
    node = graph.producer(norm.x)
    if node is None or node.target != "aten.add" or len(node.inputs) != 2:
        return norm.nodes
    shape = graph.values[norm.x].shape
    if any(graph.values[value].shape != shape for value in node.inputs):
        return norm.nodes
    if any(value in structures.linears and len(graph.users(value)) == 1 for value in node.inputs):
        return norm.nodes
    return (node.id, *norm.nodes)


def _merge_epilogues(graph: Graph, structures: Structures, groups: _Groups) -> None:
    """Each projection takes the elementwise chain that alone reads it, as long as the shape stays the same."""
    in_norm = {node for norm in structures.norms.values() for node in norm.nodes}
    for node in graph.nodes:
        if classify(node) is not OpClass.MATMUL or node.id in groups.reasons:
            continue
        group, value = groups.of(node.id), node.output
        while True:
            users = graph.users(value)
            if len(users) != 1 or value in graph.outputs:
                break
            user = users[0]
            other = groups.of(user.id)
            fits = (
                classify(user) in ELEMENTWISE
                and user.id not in groups.reasons
                and user.id not in in_norm
                and other not in groups.closed
                and len(groups.members(other)) == 1
                and graph.values[user.output].shape == graph.values[value].shape
                and groups.can_join(group, other)
            )
            if not fits:
                break
            group, value = groups.merge(group, other), user.output
        groups.domains[group] = None
        groups.closed.add(group)


def _merge_edges(graph: Graph, groups: _Groups) -> None:
    """Merge along edges, in graph order, until nothing more can."""
    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            for source in graph.producers(node.id):
                first, second = groups.of(source.id), groups.of(node.id)
                if first == second or not _may_merge(graph, groups, source, node):
                    continue
                if groups.can_join(first, second):
                    domain = join(groups.domains[first], groups.domains[second])
                    groups.domains[groups.merge(first, second)] = domain
                    changed = True


def _may_merge(graph: Graph, groups: _Groups, source: Node, node: Node) -> bool:
    first, second = groups.of(source.id), groups.of(node.id)
    if groups.closed & {first, second} or {first, second} <= groups.wholes:
        return False
    reasons = {groups.reasons.get(source.id), groups.reasons.get(node.id)}
    if reasons != {None}:
        # What a kernel may not compute for the same harmless reason, the framework computes as one piece.
        (reason, *others) = reasons
        return not others and reason is not None and reason.startswith("unsupported dtype")
    kinds = {classify(source), classify(node)}
    if kinds <= LAYOUT:
        return True
    if not kinds <= _FUSIBLE:
        return False
    domain = join(groups.domains[first], groups.domains[second])
    if domain is None:
        return False
    small = groups.domains[first]
    if small is not None and small.shape != domain.shape and not small.reduces:
        # A smaller tensor is computed again for every row: only where nobody else wants it.
        members = set(groups.members(first)) | set(groups.members(second))
        _, seen = graph.crossing(groups.members(first))
        return all(user.id in members for value in seen for user in graph.users(value)) and not (
            set(seen) & set(graph.outputs)
        )
    return True


def _is_convex(graph: Graph, nodes: Iterable[str]) -> bool:
    """True when no path leads out of the nodes and back in."""
    inside = set(nodes)
    last = max(graph.position(node) for node in inside)
    frontier = [user.id for node in inside for user in graph.consumers(node) if user.id not in inside]
    seen: set[str] = set()
    while frontier:
        node = frontier.pop()
        if node in seen or graph.position(node) > last:
            continue
        seen.add(node)
        for user in graph.consumers(node):
            if user.id in inside:
                return False
            frontier.append(user.id)
    return True


def _region(
    graph: Graph, structures: Structures, name: str, nodes: tuple[str, ...], reasons: Mapping[str, str]
) -> Region:
    inputs, outputs = graph.crossing(nodes)
    category = category_of(graph, structures, nodes, blocked=any(node in reasons for node in nodes))
    found = dict.fromkeys(reasons[node] for node in nodes if node in reasons)
    return Region(
        id=name,
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        category=category,
        label=label_of(graph, structures, nodes, category),
        blocked="; ".join(found) or None,
    )
