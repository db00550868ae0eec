"""gated_mlp_up and gated_mlp_down: an MLP whose one projection gates the other."""

from __future__ import annotations

from generator.analyze.analysis import Match, PatternResult, Skip
from generator.analyze.ops import RESHAPES
from generator.analyze.patterns.residual import added_to_stream
from generator.analyze.patterns.site import Site, result
from generator.analyze.structures import Gate, Linear
from generator.analyze.trail import origin, part_of, uses
from kb.contract import Contract

_ABSENT = "no activated projection is multiplied with another one"


def gated_mlp_up(site: Site, contract: Contract) -> PatternResult:
    """Both projections of a gated MLP, with their activation and product."""
    return result(contract, [_up(site, contract, gate) for gate in _gates(site)], _ABSENT)


def gated_mlp_down(site: Site, contract: Contract) -> PatternResult:
    """The projection of a gated product, with the addition to the residual stream."""
    judged: list[Match | Skip] = []
    for gate in _gates(site):
        found, _ = uses(site.graph, gate.out, RESHAPES)
        for use in found:
            linear = next((x for x in site.structures.linears.values() if use.node.id in x.nodes), None)
            if linear is not None and use.value == linear.x:
                judged.append(_down(site, contract, linear, use.through))
    return result(contract, judged, _ABSENT)


def _gates(site: Site) -> list[Gate]:
    """Gates with a projection on either side."""
    gates = site.structures.gates.values()
    return [g for g in gates if all(site.projection_of(value)[0] is not None for value in (g.gate, g.up))]


def _up(site: Site, contract: Contract, gate: Gate) -> Match | Skip:
    (first, views), (second, more) = site.projection_of(gate.gate), site.projection_of(gate.up)
    assert first is not None, gate.gate  # _gates asked
    assert second is not None, gate.up
    nodes = (*first.nodes, *second.nodes, *views, *more, *gate.nodes)
    if gate.activation != "silu":
        return site.skip(nodes, f"the activation is {gate.activation}, not SiLU")
    if first.bias is not None or second.bias is not None:
        return site.skip(nodes, "no-bias: a projection has a bias")
    if not (first.rows_contiguous and second.rows_contiguous):
        return site.skip(nodes, "vector-width: a weight is stored with its columns contiguous")
    for linear in (first, second):
        other = site.read_elsewhere(linear.out, nodes)
        if other is not None:
            return site.skip(nodes, f"same-input: a projection is also read by {other}")
    width = _width(site, gate, first, second)
    if isinstance(width, str):
        return site.skip(nodes, f"same-input: {width}")
    dims = {"num_tokens": first.rows, "hidden_size": first.in_features, "intermediate_size": width}
    note = "one joint projection" if first is second else "2 projections, whose rows are joined"
    return site.conclude(contract, nodes, dims, site.dtype_of(gate.out), [note])


def _width(site: Site, gate: Gate, first: Linear, second: Linear) -> int | str:
    """Width of the gated product, or why the two sides do not fit the contract."""
    if first is not second:
        if origin(site.graph, first.x).value != origin(site.graph, second.x).value:
            return "the projections read different rows"
        if first.out_features != second.out_features:
            return f"the projections have {first.out_features} and {second.out_features} rows"
        return first.out_features
    halves = [part_of(site.graph, origin(site.graph, value, RESHAPES).value) for value in (gate.gate, gate.up)]
    low, high = halves
    half = first.out_features // 2
    if low is None or high is None or low.step != 1 or high.step != 1:
        return "gate and up are not halves of the joint projection"
    if (low.start, low.end, high.start, high.end) != (0, half, half, 2 * half):
        return "the joint projection does not hold the gate rows first and the up rows after them"
    return half


def _down(site: Site, contract: Contract, linear: Linear, views: tuple[str, ...]) -> Match | Skip:
    if linear.bias is not None:
        return site.skip(linear.nodes, "no-bias: the projection has a bias")
    if not linear.rows_contiguous:
        return site.skip(linear.nodes, "vector-width: the weight is stored with its columns contiguous")
    total = added_to_stream(site, linear)
    if isinstance(total, str):
        return site.skip(linear.nodes, f"single-user: {total}")
    nodes = (*views, *linear.nodes, total.node.id)
    dims = {"num_tokens": linear.rows, "hidden_size": linear.out_features, "intermediate_size": linear.in_features}
    return site.conclude(contract, nodes, dims, site.dtype_of(linear.out))
