"""What there is to do: the regions of a graph by kind, each kind with its contract, its spec and its plans.

Regions that compute the same thing on the same sizes are one kind: the layers of a model are judged once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from generator.analyze import Region
from generator.ir import Graph
from generator.kernel_templates.specs import Spec
from generator.plan import Hardware, PlanSet, plans_for
from generator.regions import RegionContract, UnsupportedRegionError, region_contract, region_spec


@dataclass(frozen=True, slots=True)
class Kind:
    """Regions that compute the same. ``reason`` says why there are no plans; else ``plans`` has at least one.

    ``members`` are the regions, with the contract's tensors bound to the values of each.
    """

    id: str
    members: tuple[Region, ...]
    contracts: tuple[RegionContract, ...]
    spec: Spec | None = None
    plans: PlanSet | None = None
    reason: str = ""
    named: str = ""

    @property
    def label(self) -> str:
        """What people call it: the advised name, else the analyzer's."""
        return self.named or self.members[0].label

    @property
    def contract(self) -> RegionContract | None:
        """The contract, None where there is none."""
        return self.contracts[0] if self.contracts else None


def survey(
    regions: Sequence[Region],
    graph: Graph,
    hardware: Hardware,
    *,
    limit: int,
    example: Mapping[str, int] | None = None,
) -> tuple[Kind, ...]:
    """Kinds in the order their first region has in the graph. Deterministic."""
    grouped: dict[str, list[tuple[Region, RegionContract]]] = {}
    refused: dict[str, list[tuple[Region, str]]] = {}
    order: list[str] = []
    for region in regions:
        try:
            contract = region_contract(region, graph, example)
        except UnsupportedRegionError as error:
            key = f"{region.category.value}: {region.label}: {error}"
            if key not in refused:
                order.append(key)
            refused.setdefault(key, []).append((region, str(error)))
            continue
        if contract.id not in grouped:
            order.append(contract.id)
        grouped.setdefault(contract.id, []).append((region, contract))
    kinds = []
    for key in order:
        if key in refused:
            members = tuple(region for region, _ in refused[key])
            kinds.append(Kind(members[0].id, members, (), reason=refused[key][0][1]))
        else:
            kinds.append(_kind(key, grouped[key], graph, hardware, limit))
    return tuple(kinds)


def _kind(
    key: str, found: Sequence[tuple[Region, RegionContract]], graph: Graph, hardware: Hardware, limit: int
) -> Kind:
    members, contracts = tuple(r for r, _ in found), tuple(c for _, c in found)
    first = contracts[0]
    try:
        spec = region_spec(members[0], graph, first)
        plans = plans_for(spec, first.contract, hardware, first.example, first.storage, limit=limit)
    except (UnsupportedRegionError, ValueError) as error:
        return Kind(key, members, contracts, reason=str(error))
    if not plans.plans:
        constraint = plans.removed[0].constraint if plans.removed else "no template has parameters for it"
        return Kind(key, members, contracts, spec, plans, f"no plan is legal: {constraint}")
    return Kind(key, members, contracts, spec, plans)


__all__ = ["Kind", "survey"]
