"""The plans of a region: enumerated, the impossible removed with the constraint, ranked, and a diverse few kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from generator.kernel_templates.legality import enumerated, legal
from generator.kernel_templates.parameters import Parameters
from generator.kernel_templates.specs import Spec
from generator.kernel_templates.templates import family
from generator.plan.cost import Cost, cost_of
from generator.plan.hardware import Hardware
from kb.contract import Contract
from kb.dtype import DType

DEFAULT_LIMIT = 4
# Plans alike in all but one of these are kept only when there is room: they teach the judge little.
_MINOR = frozenset({"unroll", "stages", "block", "dependent", "keep"})


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to make a region's kernel. ``key`` names it within the region, the same in every run."""

    key: str
    family: str
    parameters: Parameters
    cost: Cost


@dataclass(frozen=True, slots=True)
class Removed:
    """A combination that cannot be, and the constraint that says so."""

    key: str
    constraint: str


@dataclass(frozen=True, slots=True)
class PlanSet:
    """``plans``: the few that are judged, best first. ``legal``: all that could be, in the cost model's order."""

    plans: tuple[Plan, ...]
    legal: tuple[Plan, ...]
    removed: tuple[Removed, ...]

    def reordered(self, first: Sequence[str]) -> PlanSet:
        """The same space with the plans called ``first`` at the front; as many are kept as before."""
        by_key = {plan.key: plan for plan in self.legal}
        leading = [by_key[key] for key in dict.fromkeys(first)]
        rest = [plan for plan in (*self.plans, *self.legal) if plan not in leading]
        return PlanSet(tuple(dict.fromkeys([*leading, *rest]))[: len(self.plans)], self.legal, self.removed)


def plans_for(
    spec: Spec,
    contract: Contract,
    hardware: Hardware,
    dims: Mapping[str, int],
    storage: DType,
    *,
    limit: int = DEFAULT_LIMIT,
) -> PlanSet:
    """At most ``limit`` plans for ``spec``. Deterministic; the space is a few dozen combinations at the most."""
    least = contract.bytes_moved(dims, storage)
    possible: list[Plan] = []
    removed: list[Removed] = []
    for parameters in dict.fromkeys(enumerated(spec, hardware.target)):
        key = plan_key(parameters)
        reason = legal(spec, parameters, hardware.target, hardware.arch, dims)
        if reason is not None:
            removed.append(Removed(key, reason))
            continue
        cost = cost_of(spec, parameters, hardware, dims, least_bytes=least, storage=storage)
        possible.append(Plan(key, family(parameters), parameters, cost))
    ranked = sorted(possible, key=lambda plan: plan.cost.microseconds)  # stable: the template's own order breaks ties
    return PlanSet(tuple(_diverse(ranked, limit)), tuple(ranked), tuple(removed))


def plan_key(parameters: Parameters) -> str:
    """``rows vector=4 keep=0``: the family and every parameter that is not the family's default."""
    changed = [(f.name, getattr(parameters, f.name)) for f in fields(parameters)]
    usual = type(parameters)()
    settings = [f"{name}={int(number)}" for name, number in changed if number != getattr(usual, name)]
    return " ".join([family(parameters), *settings])


def _diverse(ranked: Sequence[Plan], limit: int) -> list[Plan]:
    """The best of every kind in rank order, a kind of every family first; then whatever is best of the rest."""
    chosen: list[Plan] = []
    for kind in (lambda p: p.family, _kind, lambda p: p.key):
        seen = {kind(plan) for plan in chosen}
        for plan in ranked:
            if len(chosen) < limit and kind(plan) not in seen:
                seen.add(kind(plan))
                chosen.append(plan)
    return sorted(chosen, key=ranked.index)


def _kind(plan: Plan) -> tuple[object, ...]:
    settings = [(f.name, getattr(plan.parameters, f.name)) for f in fields(plan.parameters)]
    return (plan.family, *(s for s in settings if s[0] not in _MINOR))


__all__ = ["DEFAULT_LIMIT", "Plan", "PlanSet", "Removed", "plan_key", "plans_for"]
