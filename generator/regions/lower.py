"""A region as the spec of a kernel template, or the reason why no template computes it.

The region's operators become scalar steps, reductions over one common axis, and at most one product of matrices;
views become strides. What the region reads and writes lies in dense tensors named as in the region's contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from generator.ir import Arg, Graph, Node, Value, ValueRef
from generator.kernel_templates.sizes import Size, product
from generator.kernel_templates.specs import Op, Operand, Reduce, Reduction, Spec, Step
from generator.regions.axes import Axes, Axis, Dims
from generator.regions.contract import RegionContract
from generator.regions.scalar_steps import scalar_steps
from generator.regions.spaces import Placed, Product, elementwise_spec, product_spec, row_spec
from generator.regions.unsupported import UnsupportedRegionError
from kb.dtype import DType

if TYPE_CHECKING:
    from generator.analyze import Region

_SAME = frozenset({"aten.clone", "aten.alias", "aten.detach", "aten.contiguous", "aten.lift_fresh_copy"})
_VIEWS = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.flatten"})
_CASTS = frozenset({"aten._to_copy", "aten.to", "prims.convert_element_type"})
_REDUCTIONS = {
    "aten.sum": Reduction.SUM,
    "aten.mean": Reduction.MEAN,
    "aten.amax": Reduction.MAX,
    "aten.amin": Reduction.MIN,
}
_NARROW = {"bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16}
_LAYER_NORM_EPS = 1e-5  # the operator's default
_FLOATS = frozenset({"bfloat16", "float16", "float32"})


@dataclass(frozen=True, slots=True)
class Term:
    """A value inside the region: the step, input or number that holds an element of it, and what its dims run along."""

    operand: Operand
    dims: Dims


@dataclass(slots=True)
class _Lowering:
    """State of one lowering."""

    graph: Graph
    named: Mapping[str, str]  # value id -> tensor of the contract
    outside: frozenset[str]  # values that are returned and used by nothing in the region
    axes: Axes = field(default_factory=Axes)
    terms: dict[str, Term] = field(default_factory=dict)
    phases: list[Step | Reduce] = field(default_factory=list)
    reduced: list[tuple[Axis, ...]] = field(default_factory=list)
    product: Product | None = None

    def emit(self, op: Op, args: Sequence[Operand], dtype: DType | None = None) -> str:
        name = f"s{len(self.phases)}"
        self.phases.append(Step(name, op, tuple(args), dtype))
        return name

    def reduce(self, kind: Reduction, value: Operand) -> str:
        name = f"s{len(self.phases)}"
        if not isinstance(value, str):
            raise UnsupportedRegionError("a reduction of a constant")
        self.phases.append(Reduce(name, kind, value))
        return name

    def term(self, value_id: str) -> Term:
        """The term of a value; one that is read from outside gets axes of its own at first sight."""
        if value_id not in self.terms:
            value = self.graph.values[value_id]
            self.terms[value_id] = Term(self.named[value_id], self.axes.fresh(value.shape))
        return self.terms[value_id]


def region_spec(region: Region, graph: Graph, contract: RegionContract) -> Spec:
    """The spec of ``region`` over the tensors of its contract. Raises UnsupportedRegionError with the reason."""
    named = {value_id: tensor for tensor, value_id in contract.tensors.items()}
    inside = [graph.node(n) for n in region.nodes]
    used = {v for node in inside for v in node.inputs}
    written = {o.tensor for o in contract.program.outputs}
    outside = frozenset(v for t, v in contract.tensors.items() if t in written and v not in used)
    lowering = _Lowering(graph, named, outside)
    stored = {contract.tensors[o.tensor]: o.rounded for o in contract.program.outputs if o.rounded}
    for node in inside:
        _lower(node, lowering)
        for value_id in set(node.outputs) & set(stored):
            term = lowering.terms[value_id]
            rounded = lowering.emit(Op.ROUND, (term.operand,), _NARROW[stored[value_id]])
            lowering.terms[value_id] = Term(rounded, term.dims)
    types = {t.name: t.dtype for t in contract.contract.tensors}
    inputs = [
        _placed(name, types[name], graph.values[value_id], lowering.term(value_id), lowering.axes)
        for name, value_id in contract.tensors.items()
        if name not in written
    ]
    outputs = [
        _placed(
            name,
            types[name],
            graph.values[contract.tensors[name]],
            lowering.term(contract.tensors[name]),
            lowering.axes,
        )
        for name in types
        if name in written
    ]
    reduced = _one_reduction(lowering)
    if lowering.product is not None:
        if reduced:
            raise UnsupportedRegionError("a reduction beside a product of matrices")
        return product_spec(lowering.product, lowering.axes, inputs, outputs, lowering.phases)
    if reduced:
        return row_spec(lowering.axes, reduced, inputs, outputs, lowering.phases)
    return elementwise_spec(lowering.axes, inputs, outputs, lowering.phases)


def _lower(node: Node, low: _Lowering) -> None:
    graph = low.graph
    made = [graph.values[v] for v in node.outputs]
    if not made:
        raise UnsupportedRegionError(f"{node.op} has no result")
    value = made[0]
    if node.target in _SAME:
        low.terms[value.id] = _argument(node, 0, low)
    elif node.target in _VIEWS:
        source = _argument(node, 0, low)
        low.terms[value.id] = Term(source.operand, low.axes.view(source.dims, value.shape))
    elif node.target == "aten.expand":
        source = _argument(node, 0, low)
        low.terms[value.id] = Term(source.operand, low.axes.expand(source.dims, value.shape))
    elif node.target in ("aten.permute", "aten.transpose", "aten.t"):
        low.terms[value.id] = _permuted(node, low)
    elif node.target in _CASTS:
        low.terms[value.id] = _cast(node, value, low)
    elif node.target in _REDUCTIONS:
        low.terms[value.id] = _reduction(node, low)
    elif node.op == "aten.var.correction":
        low.terms[value.id] = _variance(node, low)
    elif node.target in ("aten._softmax", "aten._log_softmax"):
        low.terms[value.id] = _softmax(node, low)
    elif node.target in ("aten.native_layer_norm", "aten.layer_norm", "aten.rms_norm", "aten._fused_rms_norm"):
        low.terms[value.id] = _norm(node, low)
        if any(graph.users(v.id) for v in made[1:]):
            raise UnsupportedRegionError(f"statistics of {node.op} are used")
    elif node.target in ("aten.mm", "aten.matmul", "aten.addmm", "aten.linear"):
        low.terms[value.id] = _matmul(node, low)
    elif node.target in ("aten.full", "aten.scalar_tensor", "aten.full_like"):
        fill = node.args[0] if node.target == "aten.scalar_tensor" else node.args[1]
        if isinstance(fill, bool | int | float):
            low.terms[value.id] = Term(float(fill), low.axes.fresh([1] * value.rank))
        else:
            raise UnsupportedRegionError(f"{node.op} of a symbolic number")
    else:
        low.terms[value.id] = _elementwise(node, value, low)


def _elementwise(node: Node, value: Value, low: _Lowering) -> Term:
    if value.dtype not in _FLOATS and value.dtype != "bool":
        raise UnsupportedRegionError(f"{node.op} computes in {value.dtype}")
    operands: list[Operand | None] = []
    dims: list[Dims] = []
    for arg in node.args:
        if isinstance(arg, ValueRef):
            term = low.term(arg.id)
            operands.append(term.operand)
            dims.append(term.dims)
        else:
            operands.append(_number(arg))
    result = scalar_steps(node, operands, low.emit)
    if result is None:
        raise UnsupportedRegionError(f"no template computes {node.op}")
    return Term(result, low.axes.broadcast(dims))


def _number(arg: Arg) -> float | None:
    return float(arg) if isinstance(arg, bool | int | float) else None


def _argument(node: Node, index: int, low: _Lowering) -> Term:
    arg = node.args[index] if index < len(node.args) else None
    if not isinstance(arg, ValueRef):
        raise UnsupportedRegionError(f"{node.op} without a tensor as argument {index}")
    return low.term(arg.id)


def _permuted(node: Node, low: _Lowering) -> Term:
    source = _argument(node, 0, low)
    rank = len(source.dims)
    if node.target == "aten.permute" and isinstance(node.args[1], tuple):
        order = [int(i) % rank for i in node.args[1] if isinstance(i, int)]
    elif node.target == "aten.t":
        order = list(reversed(range(rank)))
    else:
        a, b = (int(i) % rank for i in node.args[1:3] if isinstance(i, int))
        order = list(range(rank))
        order[a], order[b] = order[b], order[a]
    return Term(source.operand, tuple(source.dims[i] for i in order))


def _cast(node: Node, value: Value, low: _Lowering) -> Term:
    """Widening is free; narrowing rounds, unless the value is only returned: then the store rounds."""
    source = _argument(node, 0, low)
    if value.dtype not in _FLOATS:
        raise UnsupportedRegionError(f"a conversion to {value.dtype}")
    if value.dtype not in _NARROW or value.id in low.outside:
        return source
    return Term(low.emit(Op.ROUND, (source.operand,), _NARROW[value.dtype]), source.dims)


def _reduction(node: Node, low: _Lowering) -> Term:
    source = _argument(node, 0, low)
    rank = len(source.dims)
    wanted = node.args[1] if len(node.args) > 1 else node.kwarg("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwarg("keepdim", False)
    dims = _dims(wanted, rank)
    low.reduced.append(tuple(a for d in dims for a in source.dims[d]))
    result = low.reduce(_REDUCTIONS[node.target], source.operand)
    left = tuple(() if i in dims else d for i, d in enumerate(source.dims) if keep or i not in dims)
    return Term(result, left)


def _dims(wanted: Arg, rank: int) -> list[int]:
    if wanted is None or wanted == ():
        return list(range(rank))
    given = wanted if isinstance(wanted, tuple) else (wanted,)
    return sorted(int(d) % rank for d in given if isinstance(d, int))


def _variance(node: Node, low: _Lowering) -> Term:
    """Around the mean, in two passes: the mean of squares minus a squared mean would lose what it measures."""
    source = _argument(node, 0, low)
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


def _softmax(node: Node, low: _Lowering) -> Term:
    source = _argument(node, 0, low)
    axis = _dims(node.args[1], len(source.dims))
    low.reduced.append(tuple(a for d in axis for a in source.dims[d]))
    largest = low.reduce(Reduction.MAX, source.operand)
    shifted = low.emit(Op.SUB, (source.operand, largest))
    power = low.emit(Op.EXP, (shifted,))
    total = low.reduce(Reduction.SUM, power)
    if node.target == "aten._log_softmax":
        return Term(low.emit(Op.SUB, (shifted, low.emit(Op.LOG, (total,)))), source.dims)
    return Term(low.emit(Op.DIV, (power, total)), source.dims)


def _norm(node: Node, low: _Lowering) -> Term:
    source = _argument(node, 0, low)
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


def _matmul(node: Node, low: _Lowering) -> Term:
    """``mm(x, w)``, ``matmul(x, w)``, ``addmm(bias, x, w)`` with w [k, n]; ``linear(x, w, bias)`` with w [n, k]."""
    if low.product is not None:
        raise UnsupportedRegionError("two products of matrices")
    first = 1 if node.target == "aten.addmm" else 0
    x, w = _argument(node, first, low), _argument(node, first + 1, low)
    if not isinstance(x.operand, str) or not isinstance(w.operand, str):
        raise UnsupportedRegionError(f"{node.op} of a constant")
    if {x.operand, w.operand} - set(low.named.values()):
        raise UnsupportedRegionError(f"{node.op} of something the region computes first")
    if len(w.dims) != 2 or len(x.dims) < 2:
        raise UnsupportedRegionError(f"{node.op} of tensors of {len(x.dims)} and {len(w.dims)} dims")
    if any(node.kwarg(name, 1) != 1 for name in ("alpha", "beta")):
        raise UnsupportedRegionError(f"{node.op} with factors")
    linear = node.target == "aten.linear"
    columns, sums = (w.dims[0], w.dims[1]) if linear else (w.dims[1], w.dims[0])
    low.axes.unify(x.dims[-1], sums)
    rows = tuple(a for d in x.dims[:-1] for a in d)
    low.product = Product(x.operand, w.operand, rows, columns, sums)
    result: Operand = "acc0"
    dims: Dims = (*x.dims[:-1], columns)
    bias = node.args[0] if node.target == "aten.addmm" else (node.args[2] if linear and len(node.args) > 2 else None)
    if isinstance(bias, ValueRef):
        term = low.term(bias.id)
        dims = low.axes.broadcast([dims, term.dims])
        result = low.emit(Op.ADD, (result, term.operand))
    return Term(result, dims)


def _one_reduction(low: _Lowering) -> tuple[Axis, ...]:
    """The axes every reduction runs over. Raises UnsupportedRegionError where they differ."""
    found = {low.axes.leaves(axes) for axes in low.reduced}
    if len(found) > 1:
        raise UnsupportedRegionError("reductions over different dims")
    return next(iter(found), ())


def _placed(name: str, dtype: DType, value: Value, term: Term, axes: Axes) -> Placed:
    """Where an element of ``value`` lies in its tensor, by axis, outermost dim first."""
    strides: dict[Axis, Size] = {}
    for along, stride in zip(term.dims, value.strides, strict=True):
        leaves = axes.leaves(along)
        for i, axis in enumerate(leaves):
            if axis in strides:
                raise UnsupportedRegionError(f"two dims of '{name}' run along the same axis")
            strides[axis] = product([stride, *(axes.extent(inner) for inner in leaves[i + 1 :])])
    return Placed(name, dtype, strides, term.operand)
