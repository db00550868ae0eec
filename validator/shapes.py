"""The shapes a candidate is tried on: the contract's sweep, and shapes nobody was told.

Hidden shapes are drawn anew for every judgement from its seed. They sit where kernels break: one below, at and above
a variant's limit (B−1, B, B+1), beside page boundaries, at widths and head sizes that the sweep does not name.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kb.contract import Contract, DimKind
from kb.dtype import DType

# Bytes a correctness shape may move: enough for every regime, small enough for the float64 reference.
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """Dims to try. ``hidden``: not in the contract's sweep."""

    dims: Mapping[str, int]
    hidden: bool = False

    def compile_key(self, contract: Contract) -> tuple[tuple[str, int], ...]:
        """The dims that are compiled in: shapes that share them share an image."""
        return tuple((name, self.dims[name]) for name in contract.dims_of(DimKind.STATIC, DimKind.FLAG))


def sweep_shapes(contract: Contract) -> list[Shape]:
    """The contract's correctness shapes, in its order."""
    return [Shape(dict(dims)) for dims in contract.sweep.correctness]


def hidden_shapes(contract: Contract, seed: int, count: int) -> list[Shape]:
    """``count`` shapes outside the sweep (fewer where the contract leaves no room), decided by ``seed``."""
    chooser = random.Random(seed)  # noqa: S311 - reproducible on purpose
    known = {tuple(sorted(s.dims.items())) for s in sweep_shapes(contract)}
    found: list[Shape] = []
    for dims in _candidates(contract, chooser):
        key = tuple(sorted(dims.items()))
        if key in known or contract.bytes_moved(dims, DType.FLOAT32) > MAX_BYTES:
            continue
        known.add(key)
        found.append(Shape(dims, hidden=True))
        if len(found) == count:
            break
    return found


def held_shapes(contract: Contract, here: Mapping[str, int], seed: int, count: int) -> list[Shape]:
    """Shapes with the compile-time dims ``here``: the run-time dims of every correctness shape that fit, and up to
    ``count`` combinations of them that the sweep does not name, decided by ``seed``.

    Raises ValueError when the contract allows no shape with them.
    """
    free = contract.dims_of(DimKind.RUNTIME, DimKind.WORKLOAD)
    found: dict[tuple[int, ...], Shape] = {}
    for base in contract.sweep.correctness:
        _keep(found, contract, {**{name: base[name] for name in free}, **here}, hidden=False)
    if not found:
        contract.check_dims({**dict(contract.sweep.correctness[0]), **here})
        raise ValueError(f"no shape of {contract.id} has {', '.join(f'{n}={v}' for n, v in here.items())}")
    chooser = random.Random(seed)  # noqa: S311 - reproducible on purpose
    options = {name: values for name, values in _options(contract).items() if name in free}
    wanted = len(found) + (count if options else 0)
    for _ in range(20 * count):
        if len(found) >= wanted:
            break
        dims = dict(next(iter(found.values())).dims)
        dims |= {name: chooser.choice(values) for name, values in options.items()}
        _keep(found, contract, dims, hidden=True)
    return list(found.values())


def held_timed(contract: Contract, here: Mapping[str, int]) -> list[Shape]:
    """The performance shapes' run-time dims with the compile-time dims ``here``, each combination once."""
    free = contract.dims_of(DimKind.RUNTIME, DimKind.WORKLOAD)
    found: dict[tuple[int, ...], Shape] = {}
    for base in contract.sweep.performance:
        _keep(found, contract, {**{name: base[name] for name in free}, **here}, hidden=False)
    return list(found.values())


def _keep(found: dict[tuple[int, ...], Shape], contract: Contract, dims: Mapping[str, int], *, hidden: bool) -> None:
    repaired = repair(contract, dims)
    if repaired is not None:
        ordered = {name: repaired[name] for name in contract.dims}
        found.setdefault(tuple(ordered.values()), Shape(ordered, hidden))


def _candidates(contract: Contract, chooser: random.Random) -> Iterator[dict[str, int]]:
    """Valid variations of sweep shapes, a different dim varied each time before any is varied twice."""
    options = _options(contract)
    names = list(options)
    for _ in range(20):
        chooser.shuffle(names)
        for name in names:
            base = dict(chooser.choice(contract.sweep.correctness))
            base[name] = chooser.choice(options[name])
            second = chooser.choice(names)
            if second != name and chooser.random() < 0.5:
                base[second] = chooser.choice(options[second])
            repaired = repair(contract, base)
            if repaired is not None:
                yield repaired


def _options(contract: Contract) -> dict[str, list[int]]:
    """Values to try for each dim: what the contract says may vary, and what lies beside its limits."""
    options = {name: list(values) for name, values in contract.sweep.vary.items()}
    for variant in contract.variants:
        for name in variant.when.names:
            limits = [int(word) for word in re.findall(r"[0-9]+", variant.when.text)]
            options.setdefault(name, [])
            options[name] += [limit + delta for limit in limits for delta in (-1, 0, 1)]
    if "context_len" in contract.dims:
        sizes = {shape["block_size"] for shape in contract.sweep.correctness}
        options.setdefault("context_len", [])
        options["context_len"] += [pages * size + delta for size in sizes for pages in (1, 3) for delta in (-1, 0, 1)]
    for name, dim in contract.dims.items():
        if dim.kind is DimKind.FLAG:
            options.setdefault(name, [0, 1])
    legal = {}
    for name, values in options.items():
        dim = contract.dims[name]
        inside = sorted({v for v in values if v >= dim.min and (dim.max is None or v <= dim.max)})
        if inside:
            legal[name] = inside
    return legal


def repair(contract: Contract, dims: Mapping[str, int]) -> dict[str, int] | None:
    """``dims`` with what follows from others made to fit (room in the cache, rotated width); None when nothing fits."""
    fixed = dict(dims)
    if "rotary_dim" in fixed and fixed["rotary_dim"] > fixed["head_dim"]:
        fixed["rotary_dim"] = fixed["head_dim"]
    for _ in range(24):
        try:
            contract.check_dims(fixed)
            return fixed
        except ValueError:
            grown = False
            for name in ("num_blocks", "max_blocks_per_seq"):
                if name in fixed and fixed[name] < 65536:
                    fixed[name] *= 2
                    grown = True
            if not grown:
                return None
    return None
