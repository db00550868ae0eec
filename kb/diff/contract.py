"""What changed between two versions of one contract, field by field, each change classified."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kb.contract import Contract
from kb.diff.fields import differing_fields
from kb.diff.model import ChangeClass, FieldChange
from kb.diff.principle import OF_RELATION
from kb.diff.scope import Relation, Scope, compare, scope_of_conditions
from kb.digest import CONTRACT_EDITORIAL, CONTRACT_NOTES
from kb.expr import Expr

_BY_SECTION = {
    "status": ChangeClass.STATUS,
    "dims": ChangeClass.INTERFACE,
    "tensors": ChangeClass.INTERFACE,
    "scalars": ChangeClass.INTERFACE,
    "semantics": ChangeClass.NUMERICS,
    "dtypes": ChangeClass.NUMERICS,
    "numerics": ChangeClass.NUMERICS,
    "variants": ChangeClass.JUDGEMENT,
    "baselines": ChangeClass.JUDGEMENT,
    "performance_floor": ChangeClass.JUDGEMENT,
    "rounds": ChangeClass.JUDGEMENT,
    "sweep": ChangeClass.JUDGEMENT,
}


def contract_changes(old: Contract, new: Contract) -> tuple[FieldChange, ...]:
    """Every field that differs, section by section in the model's order. ``version`` is left to the caller."""
    before, after = (c.model_dump(mode="json") for c in (old, new))
    found: list[FieldChange] = []
    for name in type(new).model_fields:
        if name == "version":
            continue
        for path, a, b in differing_fields(before[name], after[name], name):
            found.append(FieldChange(path, a, b, _classify(path, a, b, old, new)))
    # Dims are a mapping, whose order a comparison of mappings does not see; runtime dims are arguments in that order.
    kept = [[d for d in c if d in other] for c, other in ((old.dims, new.dims), (new.dims, old.dims))]
    if kept[0] != kept[1]:
        found.append(FieldChange("dims.order", list(old.dims), list(new.dims), ChangeClass.INTERFACE))
    return tuple(found)


def contract_applicability(old: Contract, new: Contract) -> Relation:
    """Where the pattern may be used: constraints, preconditions, ranges of dims and storage types together."""
    common = [name for name in new.dims if name in old.dims]
    return compare(_scope(old, common), _scope(new, common))


def _classify(path: str, before: Any, after: Any, old: Contract, new: Contract) -> ChangeClass:
    parts = path.split(".")
    section = parts[0]
    if section in CONTRACT_EDITORIAL and section != "status":
        return ChangeClass.EDITORIAL
    if parts[-1] in CONTRACT_NOTES and len(parts) > 1 and section != "sweep":
        return ChangeClass.EDITORIAL
    if section == "semantics":
        same = " ".join(str(before).split()) == " ".join(str(after).split())
        return ChangeClass.EDITORIAL if same else ChangeClass.NUMERICS
    if section == "constraints":
        return OF_RELATION[compare(scope_of_conditions(old.constraints), scope_of_conditions(new.constraints))]
    if section == "preconditions":
        return OF_RELATION[compare(_gates(old), _gates(new))]
    if path == "dtypes.storage":
        return OF_RELATION[compare(*(Scope({"storage": frozenset(c.dtypes.storage)}) for c in (old, new)))]
    if section == "dims" and len(parts) == 3 and parts[2] in ("min", "max"):
        return OF_RELATION[compare(_ranges(old, [parts[1]]), _ranges(new, [parts[1]]))]
    return _BY_SECTION[section]


def _scope(contract: Contract, names: Iterable[str]) -> Scope:
    gates = _gates(contract)
    own = [*contract.constraints, *_range_conditions(contract, names)]
    own += [p.dims for p in contract.preconditions if p.dims is not None]
    dims = scope_of_conditions(own)
    return Scope({"storage": frozenset(contract.dtypes.storage)}, dims.dims, gates.literals, dims.opaque)


def _gates(contract: Contract) -> Scope:
    """Preconditions as conditions: on dims where they say so, by name where they are structural."""
    dims = scope_of_conditions(p.dims for p in contract.preconditions if p.dims is not None)
    structural = frozenset((p.name, True) for p in contract.preconditions if p.dims is None)
    return Scope({}, dims.dims, structural, dims.opaque)


def _ranges(contract: Contract, names: Iterable[str]) -> Scope:
    return scope_of_conditions(_range_conditions(contract, names))


def _range_conditions(contract: Contract, names: Iterable[str]) -> list[Expr]:
    found = []
    for name in names:
        dim = contract.dims[name]
        if dim.kind.value != "flag":
            found.append(Expr(f"{name} >= {dim.min}"))
            if dim.max is not None:
                found.append(Expr(f"{name} <= {dim.max}"))
    return found
