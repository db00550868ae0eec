"""May two conditions hold in one situation?"""

from __future__ import annotations

from kb.condition import When
from kb.diff.scope import Scope, scope_of_when


def overlap(a: When, b: When) -> bool:
    """False when no situation satisfies both; True otherwise, also where that is not decided."""
    return not intersection(scope_of_when(a), scope_of_when(b)).is_empty


def intersection(a: Scope, b: Scope) -> Scope:
    """The conditions of both, joined by *and*."""
    sets = dict(a.sets)
    for axis, allowed in b.sets.items():
        sets[axis] = sets[axis] & allowed if axis in sets else allowed
    dims = dict(a.dims)
    for name, values in b.dims.items():
        dims[name] = dims[name] & values if name in dims else values
    return Scope(sets, dims, a.literals | b.literals, a.opaque | b.opaque)
