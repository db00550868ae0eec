"""Which contracts a model's decode steps use, at which dims, and why the others are left out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.contract import Contract
from kb.coverage import compile_dims
from kb.dtype import DType
from runtime.engine.step_sites import StepSite, sites_of_buckets
from runtime.models.spec import DecoderSpec
from validator.shapes import held_timed


class UnknownPatternError(ValueError):
    """A pattern that no contract has; the message names what is near."""


@dataclass(frozen=True, slots=True)
class Need:
    """Compile-time dims at which a model runs a contract, the type it stores, and how often a step calls it there."""

    at: Mapping[str, int]
    storage: DType
    calls: int

    def shapes(self, contract: Contract) -> tuple[Mapping[str, int], ...]:
        """Whole shapes to tune for and to be timed at: these dims with the contract's run-time dims."""
        return tuple(shape.dims for shape in held_timed(contract, self.at))


@dataclass(frozen=True, slots=True)
class Pattern:
    """One contract, seen from a model. ``wanted``: kernels are looked for; ``reason`` says why, or why not.

    ``parts``: where it is a part of a fused pattern's site, whether or not kernels are looked for there.
    """

    contract: Contract
    needs: tuple[Need, ...]
    wanted: bool
    reason: str
    parts: tuple[Need, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the model has it."""
        return bool(self.needs)


def patterns_of(
    spec: DecoderSpec,
    contracts: Mapping[str, Contract],
    buckets: Sequence[int],
    storage: DType,
    names: Sequence[str] = (),
) -> list[Pattern]:
    """All contracts, those of the step first, in the order they run. ``names``: only these are wanted; default: what
    the step calls, not the parts that a fused site can be taken apart into. Raises UnknownPatternError."""
    for name in names:
        if name not in contracts:
            near = difflib.get_close_matches(name, contracts, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(contracts))}"
            raise UnknownPatternError(f"no pattern '{name}'; {hint}")
    places: dict[str, list[StepSite]] = {}
    for place in sites_of_buckets(spec, buckets, storage):
        places.setdefault(place.site.operation, []).append(place)
    order = sorted(contracts, key=lambda c: (list(places).index(c) if c in places else len(places), c))
    return [_pattern(contracts[c], places.get(c, []), spec, names) for c in order]


def _pattern(contract: Contract, places: Sequence[StepSite], spec: DecoderSpec, names: Sequence[str]) -> Pattern:
    if not places:
        return Pattern(contract, (), False, _absence(contract, spec))
    direct = [p for p in places if p.part_of is None]
    # What is named is wanted whole, parts of fused sites included.
    chosen = places if contract.id in names else direct
    needs = _needs(contract, chosen or places)
    parts = _needs(contract, [p for p in places if p.part_of is not None])
    wanted, reason = _wanted(contract, places, needs, names)
    return Pattern(contract, needs, wanted, reason, parts)


def _wanted(
    contract: Contract, places: Sequence[StepSite], needs: Sequence[Need], names: Sequence[str]
) -> tuple[bool, str]:
    if names and contract.id not in names:
        return False, "not among the patterns asked for"
    broken = _broken(contract, needs)
    if broken is not None:
        return False, broken
    if names:
        return True, "asked for"
    if all(p.part_of for p in places):
        whole = ", ".join(sorted({p.part_of or "" for p in places}))
        return False, f"only a part of {whole}, which covers it; name it to have it compete"
    return True, f"{sum(n.calls for n in needs)} calls a step"


def _needs(contract: Contract, places: Iterable[StepSite]) -> tuple[Need, ...]:
    found: dict[tuple[tuple[str, int], ...], Need] = {}
    for place in places:
        at = compile_dims(contract, dict(place.site.dims))
        found.setdefault(tuple(at.items()), Need(at, place.site.storage, place.calls))
    return tuple(found.values())


def _broken(contract: Contract, needs: Sequence[Need]) -> str | None:
    """The first dims the contract does not allow, in words."""
    for need in needs:
        shapes = held_timed(contract, need.at)
        if not shapes:
            return f"the contract allows no shape with {dims_text(need.at)}"
        for condition in contract.preconditions:
            if condition.dims is not None and not condition.dims.evaluate(shapes[0].dims):
                return f"precondition {condition.name} does not hold: {condition.doc.rstrip('.')}"
        if need.storage not in contract.dtypes.storage:
            return f"it stores {need.storage.value}, which the contract does not"
    return None


def _absence(contract: Contract, spec: DecoderSpec) -> str:
    if contract.family == "encoder":
        return "an encoder's pattern; this model is a decoder"
    if contract.id == "o_proj_residual_rmsnorm" and (spec.sandwich_norms or spec.o_bias):
        why = "a norm of its own follows it" if spec.sandwich_norms else "it has a bias"
        return f"the output projection does not end in the residual norm: {why}"
    if contract.id == "gated_mlp_down" and spec.sandwich_norms:
        return "the down projection does not end in the residual: a norm of its own follows it"
    return "no call of a decode step of this model"


def dims_text(dims: Mapping[str, int]) -> str:
    """Dims in one line."""
    return ", ".join(f"{name}={value}" for name, value in dims.items())
