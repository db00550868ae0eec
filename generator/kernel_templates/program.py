"""Scalar programs as C: one line a step, float32, the same for both targets but for the spelling of a few functions."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from generator.kernel_templates.specs import Op, Operand, Reduce, Step
from kb.dtype import DType, Target

_C_NAMES = {
    Target.CUDA: {DType.BFLOAT16: "__nv_bfloat16", DType.FLOAT16: "__half"},
    Target.CPU: {DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"},
}
_COMMON = {DType.T: "T", DType.FLOAT32: "float", DType.INT32: "int", DType.INT64: "long long"}

_INFIX = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/",
    Op.EQ: "==", Op.NE: "!=", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">=",
}  # fmt: skip
_COMPARISONS = frozenset((Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE))

# name -> (function of the math library on CUDA, on CPU)
_LIBRARY = {
    Op.ABS: ("fabsf", "std::fabs"),
    Op.SQRT: ("sqrtf", "std::sqrt"),
    Op.EXP: ("expf", "std::exp"),
    Op.LOG: ("logf", "std::log"),
    Op.SIN: ("sinf", "std::sin"),
    Op.COS: ("cosf", "std::cos"),
    Op.TANH: ("tanhf", "std::tanh"),
    Op.ERF: ("erff", "std::erf"),
    Op.POW: ("powf", "std::pow"),
    Op.FLOOR: ("floorf", "std::floor"),
    Op.CEIL: ("ceilf", "std::ceil"),
    Op.TRUNC: ("truncf", "std::trunc"),
}
_FORMULAS = {
    Op.COPY: "{0}",
    Op.NEG: "-{0}",
    Op.SQUARE: "{0} * {0}",
    Op.RECIPROCAL: "1.0f / {0}",
    Op.RSQRT: "1.0f / {sqrt}({0})",
    Op.SIGMOID: "1.0f / (1.0f + {exp}(-{0}))",
    # For a very negative operand the denominator is infinite and the quotient zero, never NaN.
    Op.SILU: "{0} / (1.0f + {exp}(-{0}))",
    # erfc keeps its digits where 1 + erf loses them.
    Op.GELU: "0.5f * {0} * {erfc}(-0.7071067811865476f * {0})",
    Op.GELU_TANH: "0.5f * {0} * (1.0f + {tanh}(0.7978845608028654f * ({0} + 0.044715f * {0} * {0} * {0})))",
    Op.RELU: "{0} < 0.0f ? 0.0f : {0}",
    Op.MAXIMUM: "{0} > {1} || {0} != {0} ? {0} : {1}",
    Op.MINIMUM: "{0} < {1} || {0} != {0} ? {0} : {1}",
    Op.WHERE: "{0} != 0.0f ? {1} : {2}",
}
_SPELLED = {
    "sqrt": ("sqrtf", "std::sqrt"),
    "exp": ("expf", "std::exp"),
    "erfc": ("erfcf", "std::erfc"),
    "tanh": ("tanhf", "std::tanh"),
}


def c_type(dtype: DType, target: Target) -> str:
    """The element type's name in a candidate for ``target``."""
    return (_COMMON | _C_NAMES[target])[dtype]


def variable(name: str) -> str:
    """The C variable that holds a value of a program: no name of a spec can collide with one of ours."""
    return "v_" + re.sub(r"\W", "_", name)


def operand(value: Operand, scalars: Collection[str], target: Target) -> str:
    """An operand as C. Scalars are arguments of the kernel and keep their names."""
    if isinstance(value, str):
        return value if value in scalars else variable(value)
    if math.isnan(value) or math.isinf(value):
        bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000
        if target is Target.CUDA:
            return f"__int_as_float({bits:#x})"
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    text = repr(float(value)) + "f"
    return f"({text})" if value < 0 else text


def line(step: Step, scalars: Collection[str], target: Target) -> str:
    """``step`` as the definition of its variable."""
    given = [operand(a, scalars, target) for a in step.args]
    if step.op is Op.ROUND:
        assert step.dtype is not None  # the spec checks it
        value = rounded(given[0], c_type(step.dtype, target), target)
    elif step.op in _INFIX:
        value = f"{given[0]} {_INFIX[step.op]} {given[1]}"
        if step.op in _COMPARISONS:
            value = f"{value} ? 1.0f : 0.0f"
    elif step.op in _LIBRARY:
        value = f"{_LIBRARY[step.op][target is Target.CPU]}({', '.join(given)})"
    else:
        spelled = {word: names[target is Target.CPU] for word, names in _SPELLED.items()}
        value = _FORMULAS[step.op].format(*given, **spelled)
    return f"const float {variable(step.out)} = {value};"


def rounded(value: str, kind: str, target: Target) -> str:
    """``value`` as ``kind`` holds it, float32 again."""
    return f"float({kind}({value}))" if target is Target.CUDA else f"to_float(from_float<{kind}>({value}))"


def needed(steps: Sequence[Step], wanted: Collection[str]) -> tuple[Step, ...]:
    """The steps that ``wanted`` values depend on, in order."""
    names = set(wanted)
    kept = []
    for step in reversed(steps):
        if step.out in names:
            kept.append(step)
            names |= {a for a in step.args if isinstance(a, str)}
    return tuple(reversed(kept))


def read_names(steps: Sequence[Step], wanted: Collection[str]) -> set[str]:
    """Every name these steps and ``wanted`` read that no step defines."""
    names = set(wanted) | {a for s in steps for a in s.args if isinstance(a, str)}
    return names - {s.out for s in steps}


def row_values(phases: Sequence[Step | Reduce], rowwise: Collection[str]) -> set[str]:
    """Names that are one number a row, given those of the inputs and scalars that are."""
    found = set(rowwise)
    for phase in phases:
        if isinstance(phase, Reduce) or all(not isinstance(a, str) or a in found for a in phase.args):
            found.add(phase.out)
    return found


def indented(lines: Iterable[str], depth: int) -> str:
    """Lines joined, two spaces a level."""
    return "\n".join(text.lstrip() if text.lstrip().startswith("#") else "  " * depth + text for text in lines)
