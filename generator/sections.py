"""The contract and the principles as Markdown, line by line the same for the same input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb.contract import Contract, DimKind, Early, Role, Tensor
from kb.dtype import DType, Target
from kb.principle import Effect, Evidence, Principle
from kb.signature import signature

_DIM_KINDS = {
    DimKind.STATIC: "compile-time constant",
    DimKind.FLAG: "compile-time 0 or 1",
    DimKind.RUNTIME: "int argument",
    DimKind.WORKLOAD: "unknown to the kernel",
}


# Where a contract says so itself; what holds for weights and activations stands in the role.
_EARLY = {
    Early.ALL: "may be read before a dependent launch waits",
    Early.ALL_BUT_NEWEST: (
        "earlier steps wrote all of it but the last position of each sequence, which alone must be read after a "
        "dependent launch has waited"
    ),
}


def contract_section(contract: Contract, target: Target) -> str:
    """Everything that is fixed: semantics, dims, tensors, dtype rules, numerics, shapes, interface."""
    parts = [
        f"# Contract: {contract.title} (`{contract.id}` version {contract.version})",
        contract.summary.strip(),
        "## Semantics",
        contract.semantics.strip(),
        "## Dims",
        _dims(contract),
        "## Arguments",
        _tensors(contract, target),
        "## Dtype rules",
        _dtypes(contract),
        "## How right is judged",
        _numerics(contract),
        "## Shapes",
        _shapes(contract, target),
        "## Interface",
        _interface(contract, target),
    ]
    return "\n\n".join(parts) + "\n"


def principle_section(principle: Principle, *, certain: bool, reason: str) -> str:
    """One block: claim first, then mechanism, effect and evidence."""
    lines = [f"### {principle.title} [`{principle.id}` v{principle.version}]"]
    if not certain:
        lines.append(f"*May apply; {reason}.*")
    lines.append(principle.claim.strip())
    lines.append(f"Why: {principle.why.strip()}")
    if isinstance(principle.effect, Effect):
        lines.append(f"Effect: {_effect(principle.effect)}")
    told = [text for text in (_evidence(e) for e in principle.evidence) if text]
    if told:
        lines.append("Evidence: " + " | ".join(told))
    if principle.retry_when:
        lines.append(f"Worth another try when: {principle.retry_when.strip()}")
    return "\n".join(lines) + "\n"


def _dims(contract: Contract) -> str:
    rows = ["| dim | how it reaches the kernel | range | meaning |", "|---|---|---|---|"]
    for name, dim in contract.dims.items():
        flag = dim.kind is DimKind.FLAG
        upper = "" if dim.max is None else str(dim.max)
        rows.append(f"| {name} | {_DIM_KINDS[dim.kind]} | {'0, 1' if flag else f'{dim.min}..{upper}'} | {dim.doc} |")
    if contract.constraints:
        rows.append("\nAlways true: " + "; ".join(f"`{c}`" for c in contract.constraints) + ".")
    return "\n".join(rows)


def _tensors(contract: Contract, target: Target) -> str:
    rows = ["| tensor | role | shape (row-major, dense) | dtype | aligned | meaning |", "|---|---|---|---|---|---|"]
    rows += [_tensor_row(t, target) for t in contract.tensors]
    for scalar in contract.scalars:
        rows.append(f"| {scalar.name} | scalar | by value | {scalar.dtype.value} | | {scalar.doc} |")
    return "\n".join(rows)


def _tensor_row(tensor: Tensor, target: Target) -> str:
    shape = "[" + ", ".join(str(e) for e in tensor.shape) + "]"
    notes = [tensor.doc]
    if tensor.role is Role.INOUT and tensor.writes:
        notes.append(f"changes: {tensor.writes}")
    if tensor.early is not None and target is Target.CUDA:
        notes.append(_EARLY[tensor.early])
    if tensor.present_when is not None:
        notes.append(f"null pointer unless {tensor.present_when}")
    cells = (tensor.name, tensor.role.value, shape, tensor.dtype.value, f"{tensor.align} B", "; ".join(notes))
    return "| " + " | ".join(cells) + " |"


def _dtypes(contract: Contract) -> str:
    storage = ", ".join(d.value for d in contract.dtypes.storage)
    rows = [
        f"T is one of {storage}, chosen at compile time; one source serves all.",
        f"Sums are accumulated in {contract.dtypes.accumulate.value}.",
    ]
    for rounding in contract.dtypes.rounding:
        word = "Required" if rounding.binding else "Allowed, not required"
        rows.append(f"- {word}: round {rounding.point} to {rounding.to.value}. {rounding.why.rstrip('.')}.")
    return "\n".join(rows)


def _numerics(contract: Contract) -> str:
    tolerance = contract.numerics.tolerance
    lines = [
        "The truth is computed in float64, rounding only where it is required above. Your error against it may be at "
        f"most {tolerance.kappa:g} times the error of the library implementation on the same input, plus a floor of "
        f"{tolerance.floor:g} eps(T) of the output's size.",
        "Input distributions: " + ", ".join(contract.numerics.distributions) + ".",
    ]
    if tolerance.index_margin is not None:
        lines.append(
            "An index output passes when it is the true one or its logit is within "
            f"{tolerance.index_margin:g} eps(T) of the largest."
        )
    if contract.numerics.deterministic:
        lines.append("Two runs on the same input must agree bit for bit, also with several multiprocessors racing.")
    if contract.numerics.edge_cases:
        lines.append("Edge cases that are tried: " + "; ".join(contract.numerics.edge_cases) + ".")
    lines.append("Infinities and NaN must appear exactly where the truth has them.")
    return "\n".join(lines)


def _shapes(contract: Contract, target: Target) -> str:
    lines = ["Variants:"]
    lines += [f"- {v.id}: `{v.when}`. {v.doc.rstrip('.')}." for v in contract.variants]
    lines.append("\nCorrectness is judged at these shapes and at others that are not listed (odd sizes, boundaries):")
    lines += [f"- {_shape(s)}" for s in contract.sweep.correctness]
    lines.append("\nSpeed is judged, unless shapes are named further below, at:")
    lines += [f"- {_shape(s)}" for s in contract.sweep.performance]
    names = ", ".join(contract.baselines.get(target, ()))
    lines.append(f"\nThe strongest of these is the baseline: {names}.")
    return "\n".join(lines)


def _interface(contract: Contract, target: Target) -> str:
    workload = contract.dims_of(DimKind.WORKLOAD)
    constants = ", ".join(contract.dims_of(DimKind.STATIC, DimKind.FLAG))
    device = "num_sms (multiprocessors)" if target is Target.CUDA else "num_sms (threads that will run)"
    lines = [
        "Every entry has exactly this signature; replace ENTRY by the name in your launch plan:",
        "```",
        signature(contract, target) + ";",
        "```",
        f"In front of your source stand: the type `T`, and `constexpr int` constants {constants}, and {device}.",
    ]
    if workload:
        lines.append(f"Not available to the kernel: {', '.join(workload)}.")
    return "\n".join(lines)


def _shape(shape: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in shape.items())


def _effect(effect: Effect) -> str:
    size = f"{effect.low:g}x" if effect.low == effect.high else f"{effect.low:g}x to {effect.high:g}x"
    return f"{size} on {effect.of}"


def _evidence(evidence: Evidence) -> str:
    number = f": {evidence.value.number:g} {evidence.value.unit}" if evidence.value else ""
    if evidence.value and evidence.baseline_value:
        number += f" (was {evidence.baseline_value.number:g} {evidence.baseline_value.unit})"
    place = f", {evidence.hardware}" if evidence.hardware else ""
    return f"{evidence.kind.value}, {evidence.what.strip().rstrip('.')}{number}{place}"


def tuned_section(contract: Contract, dims: Sequence[Mapping[str, int]], storage: DType | None) -> str:
    """The shapes a run tunes for; empty when none are named."""
    if not dims:
        return ""
    kind = f" with T = {storage.value}" if storage else ""
    rows = [f"# Shapes to be fast at\n\nSpeed is judged at these shapes{kind}:"]
    rows += [f"- {_shape({n: d[n] for n in contract.dims if n in d})}" for d in dims]
    return "\n".join(rows) + "\n"
