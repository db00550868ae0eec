"""A region as the spec of a kernel template, or the reason why no template computes it.

The region's operators become scalar steps, reductions over one common axis, and at most one product of matrices;
views become strides. What the region reads and writes lies in dense tensors named as in the region's contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.ir import Arg, Graph, Node, Value, ValueRef
from generator.kernel_templates.sizes import Size, product
from generator.kernel_templates.specs import Op, Operand, Spec
from generator.regions.axes import Axes, Axis, Dims
from generator.regions.contract import RegionContract
from generator.regions.lowering import Lowering, Term
from generator.regions.row_operators import NORMS, REDUCTIONS, SOFTMAXES, norm, reduction, softmax, variance
from generator.regions.scalar_steps import scalar_steps
from generator.regions.spaces import Placed, Product, elementwise_spec, product_spec, row_spec
from generator.regions.unsupported import UnsupportedRegionError
from kb.dtype import DType

if TYPE_CHECKING:
    from generator.analyze import Region

_SAME = frozenset({"aten.clone", "aten.alias", "aten.detach", "aten.contiguous", "aten.lift_fresh_copy"})
_VIEWS = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.flatten"})
_CASTS = frozenset({"aten._to_copy", "aten.to", "prims.convert_element_type"})
_NARROW = {"bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16}
_FLOATS = frozenset({"bfloat16", "float16", "float32"})


def region_spec(region: Region, graph: Graph, contract: RegionContract) -> Spec:
    """The spec of ``region`` over the tensors of its contract. Raises UnsupportedRegionError with the reason."""
    named = {value_id: tensor for tensor, value_id in contract.tensors.items()}
    inside = [graph.node(n) for n in region.nodes]
    used = {v for node in inside for v in node.inputs}
    written = {o.tensor for o in contract.program.outputs}
    outside = frozenset(v for t, v in contract.tensors.items() if t in written and v not in used)
    lowering = Lowering(graph, named, outside)
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


def _lower(node: Node, low: Lowering) -> None:
    graph = low.graph
    made = [graph.values[v] for v in node.outputs]
    if not made:
        raise UnsupportedRegionError(f"{node.op} has no result")
    value = made[0]
    if node.target in _SAME:
        low.terms[value.id] = low.argument(node, 0)
    elif node.target in _VIEWS:
        source = low.argument(node, 0)
        low.terms[value.id] = Term(source.operand, low.axes.view(source.dims, value.shape))
    elif node.target == "aten.expand":
        source = low.argument(node, 0)
        low.terms[value.id] = Term(source.operand, low.axes.expand(source.dims, value.shape))
    elif node.target in ("aten.permute", "aten.transpose", "aten.t"):
        low.terms[value.id] = _permuted(node, low)
    elif node.target in _CASTS:
        low.terms[value.id] = _cast(node, value, low)
    elif node.target in REDUCTIONS:
        low.terms[value.id] = reduction(node, low)
    elif node.op == "aten.var.correction":
        low.terms[value.id] = variance(node, low)
    elif node.target in SOFTMAXES:
        low.terms[value.id] = softmax(node, low)
    elif node.target in NORMS:
        low.terms[value.id] = norm(node, low)
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


def _elementwise(node: Node, value: Value, low: Lowering) -> Term:
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


def _permuted(node: Node, low: Lowering) -> Term:
    source = low.argument(node, 0)
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


def _cast(node: Node, value: Value, low: Lowering) -> Term:
    """Widening is free; narrowing rounds, unless the value is only returned: then the store rounds."""
    source = low.argument(node, 0)
    if value.dtype not in _FLOATS:
        raise UnsupportedRegionError(f"a conversion to {value.dtype}")
    if value.dtype not in _NARROW or value.id in low.outside:
        return source
    return Term(low.emit(Op.ROUND, (source.operand,), _NARROW[value.dtype]), source.dims)


def _matmul(node: Node, low: Lowering) -> Term:
    """``mm(x, w)``, ``matmul(x, w)``, ``addmm(bias, x, w)`` with w [k, n]; ``linear(x, w, bias)`` with w [n, k]."""
    if low.product is not None:
        raise UnsupportedRegionError("two products of matrices")
    first = 1 if node.target == "aten.addmm" else 0
    x, w = low.argument(node, first), low.argument(node, first + 1)
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


def _one_reduction(low: Lowering) -> tuple[Axis, ...]:
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
