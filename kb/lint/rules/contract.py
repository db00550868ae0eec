"""AC201 to AC213: what makes a contract complete enough to judge a kernel by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from kb.contract import Contract, DimKind, Role, Variant
from kb.dtype import DType, Target
from kb.expr import ExprError
from kb.lint.example import CONTRACT, contract
from kb.lint.rule import ContractRule, Hit, Subject


def _edited(field: str, old: str, new: str) -> str:
    assert old in CONTRACT[field]
    return CONTRACT[field].replace(old, new)


class UnusedDim(ContractRule):
    """A dim that nothing uses.

    It would be asked of every caller and decide nothing. A dim is used by a shape, a constraint, a variant, a
    precondition or the semantics.
    """

    code = "AC201"
    bad = (
        contract(
            dims=CONTRACT["dims"] + "\n  depth: {kind: workload, doc: Unused}",
            sweep=CONTRACT["sweep"].replace("rows:", "depth: 1, rows:"),
        ),
    )
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        used: set[str] = set(re.findall(r"[a-z][a-z0-9_]*", contract.semantics))
        for tensor in contract.tensors:
            for expr in (*tensor.shape, tensor.present_when, tensor.traffic):
                used |= expr.names if expr is not None else frozenset()
        for expr in contract.constraints:
            used |= expr.names
        for variant in contract.variants:
            used |= variant.when.names
        for precondition in contract.preconditions:
            used |= precondition.dims.names if precondition.dims is not None else frozenset()
        for name in contract.dims:
            if name not in used:
                yield subject.hit(("dims", name), f"nothing uses the dim '{name}'", "use it or remove it", key=True)


class VariantNotSwept(ContractRule):
    """A variant that no shape of the sweep reaches.

    A kernel for it would be admitted unseen. Add a correctness shape whose first matching variant it is.
    """

    code = "AC202"
    bad = (contract(sweep=_edited("sweep", "num_tokens: 5", "num_tokens: 1")),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        reached = {_variant(contract, shape) for shape in contract.sweep.correctness}
        for i, variant in enumerate(contract.variants):
            if variant.id not in reached:
                yield subject.hit(
                    ("variants", i),
                    f"no correctness shape reaches the variant '{variant.id}'",
                    "add one to sweep.correctness",
                )


class TargetWithoutBaseline(ContractRule):
    """A target without a baseline.

    Kernels are admitted against the strongest baseline; without one nothing can be admitted on that target.
    """

    code = "AC203"
    bad = (contract(baselines="{cuda: [torch_eager]}"), contract(baselines="{cuda: [torch_eager], cpu: []}"))
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        for target in Target:
            if not contract.baselines.get(target):
                path = ("baselines", target.value) if target in contract.baselines else ("baselines",)
                yield subject.hit(path, f"no baseline for '{target}'", "name at least one", key=True)


class UndocumentedPart(ContractRule):
    """A tensor, scalar or dim without a real description.

    The description is what an author of a kernel knows of it. A repeated name is none.
    """

    code = "AC204"
    bad = (contract(tensors=_edited("tensors", "doc: The weight", "doc: w")),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        parts = [(("tensors", i), t.name, t.doc) for i, t in enumerate(contract.tensors)]
        parts += [(("scalars", i), s.name, s.doc) for i, s in enumerate(contract.scalars)]
        parts += [(("dims", name), name, dim.doc) for name, dim in contract.dims.items()]  # type: ignore[misc]
        for path, name, doc in parts:
            plain = doc.casefold().replace("_", " ").strip(" .")
            if len(doc) < 4 or plain == name.replace("_", " "):
                yield subject.hit((*path, "doc"), f"'{doc}' does not describe '{name}'", "say what it holds")


class WritesNotStated(ContractRule):
    """A tensor that is read and written does not say what is written.

    The interface gate checks that nothing else changes, so ``inout`` needs ``writes``; other roles have no use for it.
    """

    code = "AC205"
    bad = (
        contract(tensors=_edited("tensors", "name: out, role: out", "name: out, role: inout")),
        contract(tensors=_edited("tensors", "doc: The weight", "doc: The weight, writes: nothing")),
    )
    good = (
        contract(tensors=_edited("tensors", "name: out, role: out", "name: out, writes: every element, role: inout")),
    )

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        for i, tensor in enumerate(contract.tensors):
            if tensor.role is Role.INOUT and tensor.writes is None:
                yield subject.hit(
                    ("tensors", i), f"'{tensor.name}' is inout and does not say what is written", "add 'writes'"
                )
            if tensor.role is not Role.INOUT and tensor.writes is not None:
                yield subject.hit(
                    ("tensors", i, "writes"),
                    f"'{tensor.name}' is {tensor.role.value}; 'writes' is for inout",
                    "remove it",
                    key=True,
                )


class TrafficNotStated(ContractRule):
    """A tensor whose size is not the traffic it causes.

    A size that is known only at run time (blocks of a cache, rows of a table) is capacity, and a call touches a part of
    it. Without ``traffic`` the bandwidth floor counts all of it and rejects every honest kernel as impossible.
    """

    code = "AC206"
    bad = (
        contract(
            dims=CONTRACT["dims"].replace("rows: {kind: static", "rows: {kind: runtime"),
        ),
    )
    good = (
        contract(
            dims=CONTRACT["dims"].replace("rows: {kind: static", "rows: {kind: runtime"),
            tensors=CONTRACT["tensors"]
            .replace("doc: The weight", "doc: The weight, traffic: width")
            .replace("doc: The products", "doc: The products, traffic: num_tokens"),
        ),
    )

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        runtime = set(contract.dims_of(DimKind.RUNTIME))
        for i, tensor in enumerate(contract.tensors):
            extents = sorted(runtime & frozenset().union(*(e.names for e in tensor.shape)))
            if extents and tensor.traffic is None:
                yield subject.hit(
                    ("tensors", i),
                    f"the size of '{tensor.name}' depends on '{extents[0]}', known only at run time",
                    "add 'traffic'",
                )


class RoundingNotStated(ContractRule):
    """A result is stored in T and no rounding point says where it is rounded.

    Two kernels that round at different places give different tokens. Name every point, with whether it is binding. (A
    contract whose floor is 0 moves values and rounds none.)
    """

    code = "AC207"
    bad = (contract(dtypes="{storage: [bfloat16], accumulate: float32}"),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        stored = [t.name for t in contract.tensors if t.role is not Role.IN and t.dtype is DType.T]
        if stored and not contract.dtypes.rounding and contract.numerics.tolerance.floor > 0:
            yield subject.hit(
                ("dtypes",), f"'{stored[0]}' is stored in T and no rounding point is stated", "add 'rounding'", key=True
            )


class ShapeWithoutVariant(ContractRule):
    """A shape that no variant covers.

    For every number of tokens a dim allows, one variant must apply; else nobody knows which kernel is asked for.
    """

    code = "AC208"
    bad = (contract(variants=_edited("variants", "num_tokens > 1", "num_tokens > 1 and num_tokens < 40")),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        for shape in _probes(contract):
            if _variant(contract, shape) is None:
                tokens = shape.get("num_tokens")
                what = f"num_tokens = {tokens}" if tokens is not None else "a shape of the sweep"
                yield subject.hit(("variants",), f"no variant covers {what}", "widen one of the conditions", key=True)
                return


class ShadowedVariant(ContractRule):
    """A variant that is never chosen.

    The first variant that holds is taken. Where an earlier one holds whenever this one does, this one is dead.
    """

    code = "AC209"
    companions = ("AC202",)
    bad = (
        contract(
            variants="""
  - {id: few-rows, when: num_tokens >= 1, doc: Reuse decides}
  - {id: one-row, when: num_tokens == 1, doc: Bandwidth decides}"""
        ),
    )
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        holds: dict[str, bool] = {v.id: False for v in contract.variants}
        chosen: set[str] = set()
        for shape in _probes(contract):
            for variant in contract.variants:
                holds[variant.id] |= _holds(variant, shape)
            first = _variant(contract, shape)
            if first is not None:
                chosen.add(first)
        for i, variant in enumerate(contract.variants):
            if holds[variant.id] and variant.id not in chosen:
                yield subject.hit(
                    ("variants", i), f"an earlier variant always comes before '{variant.id}'", "reorder them"
                )


class VaryOutsideDims(ContractRule):
    """The sweep varies what is no dim, or beyond its range.

    The validator makes its hidden shapes from ``vary``; a value outside a dim's range makes none.
    """

    code = "AC210"
    bad = (
        contract(sweep=CONTRACT["sweep"] + "\n  vary: {depth: [1]}"),
        contract(sweep=CONTRACT["sweep"] + "\n  vary: {num_tokens: [2, 65]}"),
    )
    good = (contract(sweep=CONTRACT["sweep"] + "\n  vary: {num_tokens: [2, 64]}"),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        for name, values in contract.sweep.vary.items():
            path = ("sweep", "vary", name)
            dim = contract.dims.get(name)
            if dim is None:
                yield subject.hit(path, f"'{name}' is not a dim of this contract", "name a dim", key=True)
                continue
            low, high = (0, 1) if dim.kind is DimKind.FLAG else (dim.min, dim.max)
            for i, value in enumerate(values):
                if value < low or (high is not None and value > high):
                    yield subject.hit(
                        (*path, i), f"{name} = {value} is outside {low}..{high or ''}", "use a value in range"
                    )


class RepeatedShape(ContractRule):
    """The sweep tries one shape twice.

    It costs the time of a shape and finds what the first one found.
    """

    code = "AC211"
    bad = (contract(sweep=CONTRACT["sweep"] + "\n    - {width: 4096, num_tokens: 1, rows: 4096}"),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        for name in ("correctness", "performance"):
            seen: dict[tuple[tuple[str, int], ...], int] = {}
            for i, shape in enumerate(getattr(contract.sweep, name)):
                key = tuple(sorted(shape.items()))
                if key in seen:
                    yield subject.hit(("sweep", name, i), f"the same shape as sweep.{name}.{seen[key]}", "vary a dim")
                seen.setdefault(key, i)


class ThinDistributions(ContractRule):
    """Input distributions that miss where kernels go wrong.

    Normal numbers forgive an accumulator in half precision. Large outliers, tiny values and zeros do not. (A contract
    whose floor is 0 moves values; any will do.)
    """

    code = "AC212"
    bad = (contract(numerics=_edited("numerics", "[normal, outliers, tiny, zeros]", "[normal]")),)
    good = (contract(),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        missing = [d for d in ("normal", "outliers", "tiny", "zeros") if d not in contract.numerics.distributions]
        if missing and contract.numerics.tolerance.floor > 0:
            yield subject.hit(
                ("numerics", "distributions"), f"no {', '.join(missing)} among the distributions", "add them"
            )


class RepeatedName(ContractRule):
    """Two variants or preconditions with one name.

    Kernels, reports and skips refer to them by name.
    """

    code = "AC213"
    bad = (
        contract(
            variants="""
  - {id: rows, when: num_tokens == 1, doc: Bandwidth decides}
  - {id: rows, when: num_tokens > 1, doc: Reuse decides}"""
        ),
    )
    good = (contract(preconditions="[{name: one-input, doc: One input}, {name: dense, doc: Dense rows}]"),)

    def check(self, contract: Contract, subject: Subject) -> Iterator[Hit]:
        groups = (
            ("variants", [v.id for v in contract.variants]),
            ("preconditions", [p.name for p in contract.preconditions]),
        )
        for group, names in groups:
            for i, name in enumerate(names):
                if name in names[:i]:
                    yield subject.hit((group, i), f"the name '{name}' is used twice", "rename one of them")


def _probes(contract: Contract) -> Iterator[Mapping[str, int]]:
    """Shapes of the sweep, each also with ``num_tokens`` at every value where some variant's condition can change."""
    dim = contract.dims.get("num_tokens")
    constants = {1, 2}
    for variant in contract.variants:
        for number in re.findall(r"[0-9]+", variant.when.text):
            constants |= {int(number) - 1, int(number), int(number) + 1}
    if dim is not None and dim.max is not None:
        constants.add(dim.max)
    ordered = sorted(constants)
    constants |= {(a + b) // 2 for a, b in pairwise(ordered)}
    for _, shape in contract.sweep_shapes():
        yield shape
        if dim is not None and "num_tokens" in shape:
            for value in sorted(constants):
                if value >= dim.min and (dim.max is None or value <= dim.max):
                    yield {**shape, "num_tokens": value}


def _variant(contract: Contract, shape: Mapping[str, int]) -> str | None:
    for variant in contract.variants:
        if _holds(variant, shape):
            return variant.id
    return None


def _holds(variant: Variant, shape: Mapping[str, int]) -> bool:
    try:
        return bool(variant.when.evaluate(shape))
    except ExprError:
        return False
