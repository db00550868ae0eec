"""One result against one truth: findings, and the numbers that go into the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kb.contract import Contract
from kb.dtype import DType
from kb.manifest import Finding, ShapeError
from validator.numerics.binding import nearer_to_narrow
from validator.numerics.errors import EPS, ONE_ROUNDING, error_of, finiteness
from validator.numerics.truth import Truth
from validator.references import Expected

_DTYPES = {torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16, torch.float32: DType.FLOAT32}


@dataclass(frozen=True, slots=True)
class Judged:
    """``errors``: one for each floating output, the worse of typical and worst error as a share of what is allowed."""

    findings: tuple[Finding, ...]
    errors: tuple[ShapeError, ...]


def judge_outputs(
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    distribution: str,
    truth: Truth,
    outputs: Mapping[str, torch.Tensor],
) -> Judged:
    """Compare ``outputs`` (whole tensors by name) with the truth."""
    findings: list[Finding] = []
    errors: list[ShapeError] = []
    for name, expected in truth.expected.items():
        got = expected.written(outputs[name])
        context = {"shape": dict(dims), "distribution": distribution, "tensor": name}
        if not got.is_floating_point():
            findings += _judge_index(contract, storage, truth, name, got, context)
            continue
        baseline = truth.baseline.get(name)
        wrong = finiteness(got, expected.values, None if baseline is None else expected.written(baseline))
        if wrong is not None:
            place, value, should = wrong
            message = f"{name}{list(place)} is {value:g} where {should:g} is right ({distribution})"
            findings.append(Finding(code="not-finite", message=message, index=place, **context))
            continue
        finding, record = _judge_float(contract, storage, truth, name, got, expected, context)
        errors.append(record)
        if finding is not None:
            findings.append(finding)
        elif nearer_to_narrow(got, expected.values, storage, truth.scale(name)):
            message = f"{name} was rounded to {storage.value}; the contract keeps it in float32"
            findings.append(Finding(code="rounded-too-early", message=message, **context))
    return Judged(tuple(findings), tuple(errors))


def _judge_float(
    contract: Contract,
    storage: DType,
    truth: Truth,
    name: str,
    got: torch.Tensor,
    expected: Expected,
    context: Mapping[str, object],
) -> tuple[Finding | None, ShapeError]:
    tolerance = contract.numerics.tolerance
    error = error_of(got, expected.values, truth.scale(name), truth.slack.get(name))
    base = truth.baseline_error.get(name)
    eps = EPS[_DTYPES[got.dtype]]
    typical_may, worst_may = truth.arithmetic[name]
    base_typical, base_worst = (base.typical, base.worst) if base else (eps * ONE_ROUNDING, eps / 2)
    allowed_typical = tolerance.kappa * base_typical + tolerance.floor * eps * ONE_ROUNDING + typical_may
    allowed_worst = tolerance.kappa * base_worst + tolerance.floor * eps + worst_may
    shares = [_share(error.typical, allowed_typical), _share(error.worst, allowed_worst)]
    typical_leads = shares[0] >= shares[1]
    record = ShapeError(
        dims=dict(context["shape"]),  # type: ignore[call-overload]
        dtype=storage,
        distribution=str(context["distribution"]),
        tensor=name,
        error=error.typical if typical_leads else error.worst,
        baseline_error=base_typical if typical_leads else base_worst,
        allowed=allowed_typical if typical_leads else allowed_worst,
    )
    if max(shares) <= 1:
        return None, record
    kind = "typical error" if typical_leads else "worst element"
    place = error.place
    value, should = float(got[place]), float(expected.values[place])
    message = (
        f"{name}: {kind} {record.error:.3g} relative to its row, {record.allowed:.3g} allowed "
        f"({truth.baseline_name or 'no baseline'} has {record.baseline_error:.3g}); "
        f"worst at {list(place)}: {value:.6g} instead of {should:.6g} ({context['distribution']}, {storage.value})"
    )
    details = {"typical": error.typical, "worst": error.worst, "share": min(max(shares), 1e30)}
    return Finding(code="error-too-large", message=message, index=place, details=details, **context), record


def _judge_index(
    contract: Contract, storage: DType, truth: Truth, name: str, got: torch.Tensor, context: Mapping[str, object]
) -> list[Finding]:
    """The lowest index of the largest score; another passes only where its score is within the margin and not equal."""
    expected = truth.expected[name]
    scores = expected.scores
    assert scores is not None
    chosen = got.long()
    outside = (chosen < 0) | (chosen >= scores.shape[1])
    if outside.any():
        row = int(outside.nonzero()[0])
        message = f"{name}[{row}] = {int(got[row])} is outside 0..{scores.shape[1] - 1}"
        return [Finding(code="wrong-index", message=message, index=(row,), **context)]
    best = scores.max(dim=1).values
    reached = scores.gather(1, chosen[:, None]).squeeze(1)
    size = torch.maximum(best.abs(), scores.square().mean(1).sqrt())
    margin = (contract.numerics.tolerance.index_margin or 0.0) * EPS[storage] * size
    margin = margin + 2 * truth.arithmetic[name][1] * size
    wrong = (chosen != expected.values) & ((best - reached > margin) | (best == reached))
    if not wrong.any():
        return []
    row = int(wrong.nonzero()[0])
    tie = " (a tie goes to the lowest index)" if bool(best[row] == reached[row]) else ""
    message = (
        f"{name}[{row}] = {int(got[row])} (score {float(reached[row]):.6g}) where {int(expected.values[row])} "
        f"(score {float(best[row]):.6g}) is right{tie} ({context['distribution']}, {storage.value})"
    )
    return [Finding(code="wrong-index", message=message, index=(row,), **context)]


def _share(error: float, allowed: float) -> float:
    if error == 0:
        return 0.0
    return error / allowed if allowed > 0 else float("inf")
