"""The numerics gate: right on every shape, type, distribution and edge case, again, and wherever the data lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from kb.contract import Role
from kb.dtype import DType, Target
from kb.manifest import Finding, GateName, GateResult, ShapeError
from validator.gates.context import Context, describe, passed_or_failed
from validator.gates.interface import differences
from validator.gates.rig import Ran, Rig, truth_device
from validator.inputs import CallInputs, edge_inputs, make_inputs
from validator.numerics import Drift, Truth, Votes, judge_outputs, truth_of
from validator.shapes import Shape

# Races and orders of arrival do not show every time.
_REPEATS = 8

# A quick judgement tries these, and the contract's others on its first shape only.
_QUICK = ("normal", "outliers", "tiny")


@dataclass(slots=True)
class _Tally:
    """What one judgement has seen so far."""

    findings: list[Finding] = field(default_factory=list)
    worst: dict[tuple[object, ...], ShapeError] = field(default_factory=dict)
    inputs: int = 0
    telling: bool = False  # whether an expected output varied: only then is a constant told from a computation
    single: dict[tuple[str, DType], float] = field(default_factory=dict)  # of outputs of one element, the first seen

    def saw(self, expected: Mapping[str, torch.Tensor], storage: DType) -> None:
        """Note whether expected outputs vary: within themselves, or for a single element from input to input."""
        for name, values in expected.items():
            if values.numel() > 1:
                self.telling = self.telling or float(values.double().std()) > 0
            elif values.numel() == 1 and math.isfinite(value := float(values.reshape(-1)[0])):
                self.telling = self.telling or self.single.setdefault((name, storage), value) != value

    def record(self, errors: tuple[ShapeError, ...]) -> None:
        for error in errors:
            key = (tuple(error.dims.items()), error.dtype, error.tensor)
            if key not in self.worst or _share(error) > _share(self.worst[key]):
                self.worst[key] = error


class NumericsGate:
    """Every input is new; every other one lies elsewhere; for one of each shape and type everything is run again.

    A candidate is called on one input, on the same input at other addresses, on the same addresses with part of the
    input changed, and on the first input once more; under graph replay too on CUDA. All bits must agree where they
    should and change where they should.
    """

    name: ClassVar[GateName] = GateName.NUMERICS
    needs_run: ClassVar[bool] = True

    def run(self, context: Context) -> GateResult:
        tally = _Tally()
        pairs = context.pairs()
        for i, (shape, storage) in enumerate(pairs):
            context.progress(self.name, describe(shape, storage), i / len(pairs))
            _try(context, shape, storage, tally, thorough=not context.options.quick or i == 0)
            if tally.findings:
                break
        if not tally.findings and not tally.telling:
            message = "every expected output was constant: nothing distinguishes a computation from a constant"
            tally.findings.append(Finding(code="no-evidence", message=message))
        context.errors.extend(sorted(tally.worst.values(), key=_share, reverse=True))
        ratio = max((_share(e) for e in tally.worst.values()), default=0.0)
        return passed_or_failed(
            self.name,
            tally.findings,
            inputs=tally.inputs,
            pairs=len(pairs),
            kappa=context.contract.numerics.tolerance.kappa,
            worst_share_of_allowed=min(ratio, 1e30),
        )


def _try(context: Context, shape: Shape, storage: DType, tally: _Tally, thorough: bool) -> None:
    rig = Rig(context, shape, storage)
    votes, drift = Votes(), Drift()
    for number, (label, inputs) in enumerate(_inputs(context, shape, storage, thorough)):
        truth = _truth(context, shape, storage, inputs)
        ran = rig.run(number % 2, inputs, truth.expected)
        outputs = _judge(context, shape, storage, label, truth, ran, tally)
        votes.count(truth, outputs)
        drift.count(truth, outputs)
        if number == 0 and not tally.findings:
            tally.findings += _again(context, rig, shape, storage, truth, outputs, tally)
        if tally.findings:
            return
        context.check_budget()
    if (left := votes.left_out()) is not None:
        tally.findings.append(_left_out(context, shape, storage, *left))
    elif (leaning := drift.found()) is not None:
        tally.findings.append(_leaning(shape, storage, *leaning))


def _truth(context: Context, shape: Shape, storage: DType, inputs: CallInputs) -> Truth:
    return truth_of(
        context.contract, shape.dims, storage, inputs, context.baselines(), baseline_device=context.torch_device
    )


def _inputs(context: Context, shape: Shape, storage: DType, thorough: bool) -> Iterator[tuple[str, CallInputs]]:
    """Every distribution, then every edge case; a quick judgement takes the most telling."""
    contract, device = context.contract, truth_device(context, shape)
    names = contract.numerics.distributions
    for name in names if thorough else [n for n in names if n in _QUICK]:
        seed = context.seed_for("numerics", shape.dims, storage, name)
        yield name, make_inputs(contract, shape.dims, storage, name, seed, device)
    yield from edge_inputs(contract, shape.dims, storage, context.seed_for("edges", shape.dims, storage), device)


def _judge(
    context: Context, shape: Shape, storage: DType, label: str, truth: Truth, ran: Ran, tally: _Tally
) -> dict[str, torch.Tensor]:
    """Judge one result; its outputs, on the truth's device."""
    device = next(iter(truth.expected.values())).values.device
    outputs = {name: values.to(device) for name, values in ran.outputs.items()}
    tally.inputs += 1
    tally.findings += ran.findings
    judged = judge_outputs(context.contract, shape.dims, storage, label, truth, outputs)
    tally.findings += judged.findings
    tally.record(judged.errors)
    if not tally.telling:
        tally.saw({name: e.values for name, e in truth.expected.items()}, storage)
    return outputs


def _again(
    context: Context,
    rig: Rig,
    shape: Shape,
    storage: DType,
    truth: Truth,
    outputs: Mapping[str, torch.Tensor],
    tally: _Tally,
) -> list[Finding]:
    """The same content elsewhere, other content in the same place, and the first content again."""
    first = {name: values.cpu() for name, values in outputs.items()}
    exact = context.contract.numerics.deterministic
    moved = rig.run(1, truth.inputs, truth.expected)
    if exact and (
        found := differences(context, shape, first, dict(moved.outputs), "the same input at other addresses")
    ):
        return found
    changed = _partly_changed(context, shape, storage, truth.inputs)
    other = _truth(context, shape, storage, changed)
    _judge(
        context, shape, storage, "normal, partly changed in place", other, rig.run(0, changed, other.expected), tally
    )
    if tally.findings:
        return []
    for _ in range(_REPEATS if exact else 1):
        back = rig.run(0, truth.inputs, truth.expected)
        if exact and (found := differences(context, shape, first, dict(back.outputs), "the same call again")):
            return found
    if context.target is Target.CUDA:
        for _ in range(2):
            replayed = rig.run(0, truth.inputs, truth.expected, graph=True)
            if replayed.findings:
                return list(replayed.findings)
            if exact and (found := differences(context, shape, first, dict(replayed.outputs), "graph replay")):
                return found
        fresh = rig.run(0, changed, other.expected, graph=True)
        _judge(context, shape, storage, "normal, partly changed, graph replay", other, fresh, tally)
    return []


def _partly_changed(context: Context, shape: Shape, storage: DType, inputs: CallInputs) -> CallInputs:
    """``inputs`` with the last part of every floating input drawn anew: what a memo keyed on the beginning misses."""
    seed = context.seed_for("changed", shape.dims, storage)
    drawn = make_inputs(context.contract, shape.dims, storage, "normal", seed, truth_device(context, shape))
    mixed: dict[str, torch.Tensor | None] = {}
    for tensor in context.contract.tensors:
        old, new = inputs.tensors.get(tensor.name), drawn.tensors.get(tensor.name)
        if old is None or new is None or tensor.role is Role.OUT or tensor.dtype is not DType.T:
            continue
        changed = old.clone()
        keep = math.ceil(changed.numel() * 0.6)
        changed.view(-1)[keep:] = new.reshape(-1)[keep:]
        mixed[tensor.name] = changed
    return inputs.with_tensors(mixed)


def _left_out(context: Context, shape: Shape, storage: DType, point: int, kept: int, left: int) -> Finding:
    points = [r.point for r in context.contract.dtypes.rounding if r.binding]
    message = (
        f"a binding rounding point is left out (one of: {'; '.join(points)}): where it decides, {left} elements are "
        f"what comes out without it and {kept} what comes out with it ({storage.value})"
    )
    details = {"point": point, "with": kept, "without": left}
    return Finding(code="rounding-left-out", message=message, shape=dict(shape.dims), details=details)


def _leaning(shape: Shape, storage: DType, name: str, side: str, mean: float) -> Finding:
    message = (
        f"{name} leans {side}: its errors average {mean:.2f} spacings of {storage.value}, where rounding to nearest "
        "averages 0 and cutting bits off -0.5"
    )
    return Finding(code="not-rounded-to-nearest", message=message, shape=dict(shape.dims), tensor=name)


def _share(error: ShapeError) -> float:
    if error.error == 0:
        return 0.0
    return error.error / error.allowed if error.allowed > 0 else math.inf
