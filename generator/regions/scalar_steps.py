"""Operators of the framework as scalar steps of a kernel template: one element in, one element out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from generator.ir import Node
from generator.kernel_templates.specs import Op, Operand
from generator.regions.unsupported import UnsupportedRegionError

# Adds a step and gives the name of its result.
Emit = Callable[[Op, Sequence[Operand]], Operand]

_UNARY = {
    "aten.neg": Op.NEG,
    "aten.abs": Op.ABS,
    "aten.sqrt": Op.SQRT,
    "aten.rsqrt": Op.RSQRT,
    "aten.reciprocal": Op.RECIPROCAL,
    "aten.exp": Op.EXP,
    "aten.log": Op.LOG,
    "aten.sin": Op.SIN,
    "aten.cos": Op.COS,
    "aten.tanh": Op.TANH,
    "aten.erf": Op.ERF,
    "aten.sigmoid": Op.SIGMOID,
    "aten.silu": Op.SILU,
    "aten.relu": Op.RELU,
    "aten.floor": Op.FLOOR,
    "aten.ceil": Op.CEIL,
    "aten.trunc": Op.TRUNC,
}
_BINARY = {
    "aten.mul": Op.MUL,
    "aten.div": Op.DIV,
    "aten.maximum": Op.MAXIMUM,
    "aten.minimum": Op.MINIMUM,
    "aten.eq": Op.EQ,
    "aten.ne": Op.NE,
    "aten.lt": Op.LT,
    "aten.le": Op.LE,
    "aten.gt": Op.GT,
    "aten.ge": Op.GE,
}
# Powers that have a step of their own; torch computes them this way too.
_POWERS = {2.0: Op.SQUARE, 0.5: Op.SQRT, -0.5: Op.RSQRT, -1.0: Op.RECIPROCAL, 1.0: Op.COPY}


def scalar_steps(node: Node, operands: Sequence[Operand | None], emit: Emit) -> Operand | None:
    """The result of ``node``, its steps given to ``emit``; None for an operator that is not elementwise.

    ``operands``: by positional argument, a name or number, None where the argument is neither a tensor nor a number.
    Raises UnsupportedRegionError for a variant that no step computes.
    """
    target = node.target
    if target in _UNARY:
        return emit(_UNARY[target], (_need(node, operands, 0),))
    if target in _BINARY:
        if target == "aten.div" and node.kwarg("rounding_mode") is not None:
            raise UnsupportedRegionError(f"{node.op} that rounds")
        return emit(_BINARY[target], (_need(node, operands, 0), _need(node, operands, 1)))
    if target in ("aten.add", "aten.sub", "aten.rsub"):
        return _sum(node, operands, emit)
    if target == "aten.pow":
        return _power(node, operands, emit)
    if target == "aten.gelu":
        return emit(Op.GELU_TANH if node.kwarg("approximate") == "tanh" else Op.GELU, (_need(node, operands, 0),))
    if target == "aten.where":
        return emit(Op.WHERE, tuple(_need(node, operands, i) for i in range(3)))
    if target in ("aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.hardtanh"):
        return _clamp(node, operands, emit)
    if target in ("aten.logical_not", "aten.bitwise_not"):
        return emit(Op.EQ, (_need(node, operands, 0), 0.0))
    if target in ("aten.logical_and", "aten.bitwise_and"):
        return emit(Op.MUL, (_need(node, operands, 0), _need(node, operands, 1)))
    if target in ("aten.logical_or", "aten.bitwise_or"):
        return emit(Op.MAXIMUM, (_need(node, operands, 0), _need(node, operands, 1)))
    return None


def _sum(node: Node, operands: Sequence[Operand | None], emit: Emit) -> Operand:
    first, second = _need(node, operands, 0), _need(node, operands, 1)
    alpha = node.kwarg("alpha", operands[2] if len(operands) > 2 else 1)
    if not isinstance(alpha, int | float):
        raise UnsupportedRegionError(f"{node.op} with a factor that is no number")
    if node.target == "aten.rsub":  # other - alpha * self
        first, second = second, first
    if float(alpha) != 1.0:
        second = emit(Op.MUL, (second, float(alpha)))
    return emit(Op.ADD if node.target == "aten.add" else Op.SUB, (first, second))


def _power(node: Node, operands: Sequence[Operand | None], emit: Emit) -> Operand:
    base, exponent = _need(node, operands, 0), _need(node, operands, 1)
    if isinstance(exponent, float) and exponent in _POWERS:
        return emit(_POWERS[exponent], (base,))
    if exponent == 3.0:
        return emit(Op.MUL, (emit(Op.SQUARE, (base,)), base))
    return emit(Op.POW, (base, exponent))


def _clamp(node: Node, operands: Sequence[Operand | None], emit: Emit) -> Operand:
    result = _need(node, operands, 0)
    bounds = [node.kwarg("min"), node.kwarg("max")]
    given = [operands[i] if len(operands) > i else None for i in (1, 2)]
    if node.target == "aten.clamp_max":
        given = [None, given[0]]
    low, high = (g if g is not None else b for g, b in zip(given, bounds, strict=True))
    for op, bound in ((Op.MAXIMUM, low), (Op.MINIMUM, high)):
        if bound is not None:
            result = emit(op, (result, bound if isinstance(bound, str) else float(bound)))  # type: ignore[arg-type]
    return result


def _need(node: Node, operands: Sequence[Operand | None], index: int) -> Operand:
    if index >= len(operands) or operands[index] is None:
        raise UnsupportedRegionError(f"{node.op} without a tensor or number as argument {index}")
    found = operands[index]
    assert found is not None
    return found
