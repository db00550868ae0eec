"""Row reductions, softmax and norms written as row programs."""

from __future__ import annotations

from generator.kernel_templates.specs import (
    NormKind,
    NormSpec,
    Op,
    Reduce,
    Reduction,
    RowReductionSpec,
    RowSpec,
    SoftmaxSpec,
    Step,
)

AnyRowSpec = RowSpec | RowReductionSpec | SoftmaxSpec | NormSpec


def as_rows(spec: AnyRowSpec) -> RowSpec:
    """The row program that computes ``spec``."""
    match spec:
        case RowSpec():
            return spec
        case RowReductionSpec():
            phases: tuple[Step | Reduce, ...] = (
                *spec.prologue,
                Reduce(spec.result, spec.kind, spec.value),
                *spec.epilogue,
            )
            return RowSpec(spec.shape, spec.inputs, phases, row_stores=spec.stores, scalars=spec.scalars)
        case SoftmaxSpec():
            phases = (*spec.prologue, *_softmax(spec), *spec.epilogue)
        case NormSpec():
            phases = (*spec.prologue, *(_rms(spec) if spec.kind is NormKind.RMS else _layer(spec)), *_affine(spec))
            phases = (*phases, *spec.epilogue)
    return RowSpec(spec.shape, spec.inputs, phases, stores=spec.stores, scalars=spec.scalars)


def _softmax(spec: SoftmaxSpec) -> tuple[Step | Reduce, ...]:
    shifted = (
        Reduce("_largest", Reduction.MAX, spec.value),
        Step("_shifted", Op.SUB, (spec.value, "_largest")),
        Step("_exp", Op.EXP, ("_shifted",)),
        Reduce("_total", Reduction.SUM, "_exp"),
    )
    if spec.log:
        last = (Step("_log", Op.LOG, ("_total",)), Step(spec.result, Op.SUB, ("_shifted", "_log")))
    else:
        last = (Step("_scale", Op.RECIPROCAL, ("_total",)), Step(spec.result, Op.MUL, ("_exp", "_scale")))
    return (*shifted, *last)


def _rms(spec: NormSpec) -> tuple[Step | Reduce, ...]:
    return (
        Step("_square", Op.SQUARE, (spec.value,)),
        Reduce("_variance", Reduction.MEAN, "_square"),
        Step("_stable", Op.ADD, ("_variance", spec.eps)),
        Step("_root", Op.RSQRT, ("_stable",)),
        Step("_plain", Op.MUL, (spec.value, "_root")),
    )


def _layer(spec: NormSpec) -> tuple[Step | Reduce, ...]:
    """A second pass corrects the mean's rounding error: without it a constant row would show a spread of its own."""
    return (
        Reduce("_rough", Reduction.MEAN, spec.value),
        Step("_off", Op.SUB, (spec.value, "_rough")),
        Reduce("_rest", Reduction.MEAN, "_off"),
        Step("_mean", Op.ADD, ("_rough", "_rest")),
        Step("_centred", Op.SUB, (spec.value, "_mean")),
        Step("_square", Op.SQUARE, ("_centred",)),
        Reduce("_variance", Reduction.MEAN, "_square"),
        Step("_stable", Op.ADD, ("_variance", spec.eps)),
        Step("_root", Op.RSQRT, ("_stable",)),
        Step("_plain", Op.MUL, ("_centred", "_root")),
    )


def _affine(spec: NormSpec) -> tuple[Step, ...]:
    steps, last = [], "_plain"
    if spec.round_normalised is not None:
        steps.append(Step("_rounded", Op.ROUND, (last,), spec.round_normalised))
        last = "_rounded"
    if spec.weight is not None:
        steps.append(Step("_scaled", Op.MUL, (last, spec.weight)))
        last = "_scaled"
    if spec.bias is not None:
        steps.append(Step("_moved", Op.ADD, (last, spec.bias)))
        last = "_moved"
    return (*steps, Step(spec.result, Op.COPY, (last,)))
