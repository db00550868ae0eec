"""Operators that reduce over rows, as phases: sums and extremes, variance, softmax and the norms."""

from __future__ import annotations

from generator.ir import Arg, Node, ValueRef
from generator.kernel_templates.specs import Op, Reduction
from generator.regions.lowering import Lowering, Term
from generator.regions.unsupported import UnsupportedRegionError

REDUCTIONS = {
    "aten.sum": Reduction.SUM,
    "aten.mean": Reduction.MEAN,
    "aten.amax": Reduction.MAX,
    "aten.amin": Reduction.MIN,
}
SOFTMAXES = frozenset({"aten._softmax", "aten._log_softmax"})
NORMS = frozenset({"aten.native_layer_norm", "aten.layer_norm", "aten.rms_norm", "aten._fused_rms_norm"})
_LAYER_NORM_EPS = 1e-5  # the operator's default


def reduction(node: Node, low: Lowering) -> Term:
    """A sum, mean, largest or smallest number."""
    source = low.argument(node, 0)
    rank = len(source.dims)
    wanted = node.args[1] if len(node.args) > 1 else node.kwarg("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwarg("keepdim", False)
    dims = _dims(wanted, rank)
    low.reduced.append(tuple(a for d in dims for a in source.dims[d]))
    result = low.reduce(REDUCTIONS[node.target], source.operand)
    left = tuple(() if i in dims else d for i, d in enumerate(source.dims) if keep or i not in dims)
    return Term(result, left)


def _dims(wanted: Arg, rank: int) -> list[int]:
    if wanted is None or wanted == ():
        return list(range(rank))
    given = wanted if isinstance(wanted, tuple) else (wanted,)
    return sorted(int(d) % rank for d in given if isinstance(d, int))


def variance(node: Node, low: Lowering) -> Term:
    """Around the mean, in two passes: the mean of squares minus a squared mean would lose what it measures."""
    source = low.argument(node, 0)
    dims = _dims(node.args[1] if len(node.args) > 1 else None, len(source.dims))
    along = tuple(a for d in dims for a in source.dims[d])
    low.reduced.append(along)
    count = 1
    for axis in low.axes.leaves(along):
        extent = low.axes.extent(axis)
        if not isinstance(extent, int):
            raise UnsupportedRegionError("a variance over a size that may change")
        count *= extent
    correction = node.kwarg("correction", 1)
    left = count - float(correction if isinstance(correction, int | float) else 1)
    if left <= 0:
        raise UnsupportedRegionError("a variance of too few numbers")
    centred = low.emit(Op.SUB, (source.operand, low.reduce(Reduction.MEAN, source.operand)))
    total = low.reduce(Reduction.SUM, low.emit(Op.SQUARE, (centred,)))
    keep = bool(node.kwarg("keepdim", False))
    shape = tuple(() if i in dims else d for i, d in enumerate(source.dims) if keep or i not in dims)
    return Term(low.emit(Op.DIV, (total, left)), shape)


def softmax(node: Node, low: Lowering) -> Term:
    """Shifted by the largest number of the row."""
    source = low.argument(node, 0)
    axis = _dims(node.args[1], len(source.dims))
    low.reduced.append(tuple(a for d in axis for a in source.dims[d]))
    largest = low.reduce(Reduction.MAX, source.operand)
    shifted = low.emit(Op.SUB, (source.operand, largest))
    power = low.emit(Op.EXP, (shifted,))
    total = low.reduce(Reduction.SUM, power)
    if node.target == "aten._log_softmax":
        return Term(low.emit(Op.SUB, (shifted, low.emit(Op.LOG, (total,)))), source.dims)
    return Term(low.emit(Op.DIV, (power, total)), source.dims)


def norm(node: Node, low: Lowering) -> Term:
    """LayerNorm or RMSNorm, with what it multiplies by and adds."""
    source = low.argument(node, 0)
    layer = "layer" in node.target
    shape = node.args[1] if isinstance(node.args[1], tuple) else ()
    axis = source.dims[len(source.dims) - len(shape) :]
    low.reduced.append(tuple(a for d in axis for a in d))
    arguments = [*node.args, None, None, None]
    weight, bias = (node.kwarg(n, arguments[i]) for i, n in ((2, "weight"), (3, "bias")))
    eps = node.kwarg("eps", arguments[4] if layer else arguments[3])
    if eps is None and layer:
        eps = _LAYER_NORM_EPS
    if not isinstance(eps, int | float):
        raise UnsupportedRegionError(f"{node.op} without a stated eps")
    value = source.operand
    if layer:
        value = low.emit(Op.SUB, (value, low.reduce(Reduction.MEAN, value)))
    variance = low.reduce(Reduction.MEAN, low.emit(Op.SQUARE, (value,)))
    value = low.emit(Op.MUL, (value, low.emit(Op.RSQRT, (low.emit(Op.ADD, (variance, float(eps))),))))
    dims = source.dims
    for op, arg in ((Op.MUL, weight), (Op.ADD, bias if layer else None)):
        if isinstance(arg, ValueRef):
            term = low.term(arg.id)
            dims = low.axes.broadcast([dims, term.dims])
            value = low.emit(op, (value, term.operand))
    return Term(value, dims)


__all__ = ["NORMS", "REDUCTIONS", "SOFTMAXES", "norm", "reduction", "softmax", "variance"]
