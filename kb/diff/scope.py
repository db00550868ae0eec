"""Is one set of conditions narrower or wider than another? Sound for ranges and sets, honest about the rest.

Conditions are read as a product of axes: hardware, dtype, what bounds the kernel, a set of integers per dim, one
literal per model feature. On such axes inclusion is decided exactly. A condition over several dims is opaque:
adding one can only narrow, dropping one can only widen, exchanging one for another is not decided.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kb.condition import When
from kb.diff.integers import Integers
from kb.dtype import STORAGE_DTYPES
from kb.expr import Expr

_GPU = tuple(f"sm_{n}" for n in range(10, 1000))
_CPU = ("x86_64", "aarch64")
_BOUNDS = ("memory", "compute", "latency")


class Relation(StrEnum):
    """The new conditions compared with the old: what happened to the set of situations in which an entry holds."""

    EQUAL = "equal"
    NARROWED = "narrowed"
    WIDENED = "widened"
    SHIFTED = "shifted"  # narrower in one respect, wider in another
    UNKNOWN = "unknown"  # changed in a way that is not decided here


@dataclass(frozen=True, slots=True)
class Scope:
    """Conditions as axes. A missing name on any axis is unrestricted.

    ``dims`` is by name; ``literals`` are (feature, wanted); ``opaque`` are canonical texts.
    """

    sets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dims: Mapping[str, Integers] = field(default_factory=dict)
    literals: frozenset[tuple[str, bool]] = frozenset()
    opaque: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """True when no situation can satisfy the conditions; False where that is not decided."""
        contradicted = any((name, not wanted) in self.literals for name, wanted in self.literals)
        return (
            contradicted
            or any(not allowed for allowed in self.sets.values())
            or any(allowed.is_empty for allowed in self.dims.values())
        )


def scope_of_when(when: When) -> Scope:
    """The axes of a principle's ``when``."""
    sets = {
        "hardware": _hardware(when),
        "dtype": frozenset(when.dtype or STORAGE_DTYPES),
        "bound": frozenset([when.bound] if when.bound else _BOUNDS),
    }
    conditions = scope_of_conditions(when.dims)
    dims = dict(conditions.dims)
    if when.batch is not None:
        _restrict(dims, "num_tokens", when.batch.min, math.inf if when.batch.max is None else when.batch.max)
    literals = frozenset([(f, True) for f in when.features] + [(f, False) for f in when.without])
    return Scope(sets, dims, literals, conditions.opaque)


def scope_of_conditions(conditions: Iterable[Expr]) -> Scope:
    """The axes of conditions over dims, joined by *and*."""
    dims: dict[str, Integers] = {}
    opaque: set[str] = set()
    for condition in conditions:
        for atom in _atoms(ast.parse(condition.text.strip(), mode="eval").body):
            _add(atom, dims, opaque)
    return Scope({}, dims, frozenset(), frozenset(opaque))


def compare(old: Scope, new: Scope) -> Relation:
    """What happened to the set of situations from ``old`` to ``new``."""
    if old.is_empty or new.is_empty:
        if old.is_empty and new.is_empty:
            return Relation.EQUAL
        return Relation.WIDENED if old.is_empty else Relation.NARROWED
    exact = {_compare_literals(old.literals, new.literals)}
    for axis in old.sets.keys() | new.sets.keys():
        exact.add(_compare_sets(old.sets.get(axis), new.sets.get(axis)))
    for name in old.dims.keys() | new.dims.keys():
        exact.add(_compare_integers(old.dims.get(name, _every(name)), new.dims.get(name, _every(name))))
    return _combine(exact - {Relation.EQUAL}, _compare_opaque(old.opaque, new.opaque))


def _every(name: str) -> Integers:
    """What a dim can be at all: a step has at least one row, and no size is negative."""
    return Integers(1 if name == "num_tokens" else 0)


def _combine(exact: set[Relation], opaque: Relation) -> Relation:
    if not exact:
        return opaque
    if len(exact) > 1 or Relation.SHIFTED in exact:
        return Relation.SHIFTED
    (only,) = exact
    # An opaque condition that came while others went may cost everything they gave: nothing is claimed.
    return only if opaque in (Relation.EQUAL, only) else Relation.UNKNOWN


def _compare_sets(old: frozenset[str] | None, new: frozenset[str] | None) -> Relation:
    if old == new:
        return Relation.EQUAL
    if old is None or (new is not None and new < old):
        return Relation.NARROWED
    if new is None or old < new:
        return Relation.WIDENED
    return Relation.SHIFTED


def _compare_integers(old: Integers, new: Integers) -> Relation:
    if old == new:
        return Relation.EQUAL
    if new <= old:
        return Relation.NARROWED
    return Relation.WIDENED if old <= new else Relation.SHIFTED


def _compare_literals(old: frozenset[tuple[str, bool]], new: frozenset[tuple[str, bool]]) -> Relation:
    if old == new:
        return Relation.EQUAL
    if old < new:
        return Relation.NARROWED
    return Relation.WIDENED if new < old else Relation.SHIFTED


def _compare_opaque(old: frozenset[str], new: frozenset[str]) -> Relation:
    if old == new:
        return Relation.EQUAL
    if old < new:
        return Relation.NARROWED
    return Relation.WIDENED if new < old else Relation.UNKNOWN


def _hardware(when: When) -> frozenset[str]:
    """Architectures that both ``target`` and ``arch`` allow: an architecture belongs to exactly one target."""
    allowed: set[str] = set()
    if not when.target or "cuda" in when.target:
        allowed.update(_GPU)
    if not when.target or "cpu" in when.target:
        allowed.update(_CPU)
    arch = when.arch
    return frozenset(allowed if arch is None else (a for a in allowed if arch.holds(a)))


def _atoms(node: ast.expr) -> list[ast.expr]:
    """Parts joined by *and*, chained comparisons split: ``1 <= a < b`` is ``1 <= a`` and ``a < b``."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [atom for value in node.values for atom in _atoms(value)]
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return [ast.Compare(a, [op], [b]) for a, op, b in zip(sides, node.ops, sides[1:], strict=False)]
    return [node]


_FLIP: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


def _add(atom: ast.expr, dims: dict[str, Integers], opaque: set[str]) -> None:
    if isinstance(atom, ast.Compare):
        left, operator, right = atom.left, atom.ops[0], atom.comparators[0]
        if _number(left) is not None or (_number(right) is None and ast.unparse(left) > ast.unparse(right)):
            left, operator, right = right, _FLIP.get(type(operator), type(operator))(), left
        number = _number(right)
        if isinstance(left, ast.Name) and number is not None and _bound(dims, left.id, operator, number):
            return
        divisor = _divisor(left) if isinstance(operator, ast.Eq) and number == 0 else None
        if divisor is not None:
            name, step = divisor
            _restrict(dims, name, 0, math.inf, step)
            return
        atom = ast.Compare(left, [operator], [right])
    opaque.add(ast.unparse(atom))


def _bound(dims: dict[str, Integers], name: str, operator: ast.cmpop, number: int) -> bool:
    match operator:
        case ast.Lt():
            _restrict(dims, name, 0, number - 1)
        case ast.LtE():
            _restrict(dims, name, 0, number)
        case ast.Gt():
            _restrict(dims, name, number + 1, math.inf)
        case ast.GtE():
            _restrict(dims, name, number, math.inf)
        case ast.Eq():
            _restrict(dims, name, number, number)
        case _:
            return False
    return True


def _restrict(dims: dict[str, Integers], name: str, low: int, high: float, step: int = 1) -> None:
    dims[name] = dims.get(name, _every(name)) & Integers(low, high, step)


def _number(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return -number
    return None


def _divisor(node: ast.expr) -> tuple[str, int] | None:
    match node:
        case ast.BinOp(left=ast.Name(id=name), op=ast.Mod(), right=ast.Constant(value=int(size))) if size > 0:
            return name, size
    return None
