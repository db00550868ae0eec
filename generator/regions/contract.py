"""A region as a contract, so that the gates that judge every other kernel judge its kernels too.

The contract's id is made of the program's digest. Sizes that are numbers in the graph are numbers in the contract; a
size symbol is a runtime dim with the range that capture found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from generator.ir import Graph
from generator.regions.program import region_program
from generator.regions.unsupported import UnsupportedRegionError
from kb.contract import (
    Contract,
    Dim,
    DimKind,
    DtypeRules,
    Numerics,
    Role,
    Rounding,
    Sweep,
    Tensor,
    Tolerance,
    Variant,
)
from kb.dtype import DType, Target
from kb.expr import Expr
from kb.principle import Status
from runtime.baselines.registry import FRAMEWORK
from runtime.programs import Argument, Layout, Program, Ref, Size, register_program
from validator.references import PROGRAM
from validator.references.program import rounding_values

if TYPE_CHECKING:
    from generator.analyze import Region

FORMAT = 1
_DTYPES = {
    "bfloat16": DType.BFLOAT16,
    "float16": DType.FLOAT16,
    "float32": DType.FLOAT32,
    "int32": DType.INT32,
    "int64": DType.INT64,
}
_NARROW = (DType.BFLOAT16, DType.FLOAT16)
_MOVING = frozenset({"aten.clone", "aten.alias", "aten.view", "aten.permute", "aten.expand", "aten.embedding"})
_DISTRIBUTIONS = ("normal", "outliers", "tiny", "zeros", "one_hot", "large")
# Values of a runtime dim that are tried besides the example's, where its range has them.
_TRIED = (1, 2, 7, 33)


@dataclass(frozen=True, slots=True)
class RegionContract:
    """A region's contract with its program. ``tensors``: the graph's value behind every tensor of the contract.

    ``storage`` is what ``T`` stands for. ``example`` holds the dims of the example call.
    """

    contract: Contract
    program: Program
    storage: DType
    tensors: Mapping[str, str]
    example: Mapping[str, int]

    @property
    def id(self) -> str:
        """The contract's id: equal for regions that compute the same thing."""
        return self.contract.id


def region_contract(region: Region, graph: Graph, example: Mapping[str, int] | None = None) -> RegionContract:
    """The contract of ``region``, its program registered so that this process can judge by it.

    ``example``: values of the graph's size symbols in the example call; where one is missing, the least that is not
    trivial. Raises UnsupportedRegionError with the reason where the region has none.
    """
    if region.blocked:
        raise UnsupportedRegionError(region.blocked)
    if all(v.alias_of is not None for n in region.nodes for v in map(graph.values.__getitem__, graph.node(n).outputs)):
        raise UnsupportedRegionError("views: nothing is computed and nothing moves")
    program, bound = region_program(region, graph)
    dtypes = {name: _dtype(graph.values[value_id].dtype, name) for name, value_id in bound.items()}
    if not program.inputs:
        raise UnsupportedRegionError("it reads nothing: the framework makes a constant")
    if not program.outputs:
        raise UnsupportedRegionError("nothing outside reads what it computes")
    if bad := [o.tensor for o in program.outputs if dtypes[o.tensor] in (DType.INT32, DType.INT64)]:
        raise UnsupportedRegionError(f"it returns integers ('{bound[bad[0]]}')")
    storage = _storage(dtypes)
    layouts = {i.tensor: i.layout for i in program.inputs} | {o.tensor: o.layout for o in program.outputs}
    symbols = sorted(set().union(*(_symbols(program, layouts[name]) for name in layouts)))
    dims = {s: Dim(kind=DimKind.RUNTIME, doc=f"Size {s} of the call", **_range(s, graph)) for s in symbols}
    at = {s: (example or {}).get(s, max(dims[s].min, 2)) for s in symbols}
    written = {o.tensor for o in program.outputs}
    tensors = tuple(
        Tensor(
            name=name,
            role=Role.OUT if name in written else Role.IN,
            shape=layouts[name].stored,
            dtype=DType.T if dtypes[name] is storage else dtypes[name],
            doc=_tensor_doc(name in written, layouts[name]),
        )
        for name in bound
    )
    contract = Contract(
        id=f"region_{program_digest(program, dtypes)[:16]}",
        title=f"Captured region: {_title(program)}"[:120],
        family="captured-region",
        status=Status.ACCEPTED,
        version=FORMAT,
        summary="A region of a captured module. The framework's operators, one after the other, are the baseline.",
        semantics=describe(program)[:4000],
        dims=dims,
        tensors=tensors,
        dtypes=DtypeRules(storage=(storage,), accumulate=DType.FLOAT32, rounding=_roundings(program)),
        numerics=Numerics(reference=PROGRAM, tolerance=Tolerance(kappa=1.25, floor=1.0), distributions=_DISTRIBUTIONS),
        variants=(Variant(id="all", when=Expr("1 == 1"), doc="The sizes of the captured call"),),
        baselines={Target.CUDA: (FRAMEWORK,), Target.CPU: (FRAMEWORK,)},
        sweep=_sweep(dims, at),
    )
    register_program(contract.id, program)
    return RegionContract(contract, program, storage, bound, at)


def program_digest(program: Program, dtypes: Mapping[str, DType]) -> str:
    """SHA-256 of what the program computes on which types."""
    text = repr((FORMAT, program, sorted((name, d.value) for name, d in dtypes.items())))
    return hashlib.sha256(text.encode()).hexdigest()


def describe(program: Program) -> str:
    """The program in lines such as ``v2 = aten.mul.Tensor(v0, v1)``."""
    lines = [f"{i.value} = {i.tensor}" for i in program.inputs]
    for step in program.steps:
        arguments = [_text(a) for a in step.args] + [f"{name}={_text(a)}" for name, a in step.kwargs]
        lines.append(f"{', '.join(step.outputs)} = {step.op}({', '.join(arguments)})")
    lines += [f"{o.tensor} = {o.value}" for o in program.outputs]
    return "\n".join(lines)


def _text(argument: Argument) -> str:
    match argument:
        case Ref(name=name):
            return name
        case Size(text=text):
            return text
        case tuple():
            return f"[{', '.join(_text(a) for a in argument)}]"
        case _:
            return str(argument)


def _title(program: Program) -> str:
    found = list(dict.fromkeys(s.op.split(".")[1].removeprefix("_") for s in program.steps))
    return ", ".join(found[:6]) + (" …" if len(found) > 6 else "")


def _tensor_doc(written: bool, layout: Layout) -> str:
    order = list(layout.order)
    lies = "" if order == sorted(order) else f", stored with its dims in the order {order}"
    return f"{'Result' if written else 'Argument'} of shape [{', '.join(e.text for e in layout.shape)}]{lies}"[:120]


def _dtype(name: str, tensor: str) -> DType:
    if name not in _DTYPES:
        raise UnsupportedRegionError(f"'{tensor}' holds {name}, which no kernel takes")
    return _DTYPES[name]


def _storage(dtypes: Mapping[str, DType]) -> DType:
    narrow = {d for d in dtypes.values() if d in _NARROW}
    if len(narrow) > 1:
        raise UnsupportedRegionError("bfloat16 and float16 in one region")
    return narrow.pop() if narrow else DType.FLOAT32


def _symbols(program: Program, layout: Layout) -> frozenset[str]:
    sizes = [*layout.shape, *layout.physical]
    steps = [a for s in program.steps for a in (*s.args, *(v for _, v in s.kwargs))]
    return frozenset().union(*(e.names for e in sizes), *(_size_names(a) for a in steps))


def _size_names(argument: Argument) -> frozenset[str]:
    if isinstance(argument, Size):
        return Expr(argument.text).names
    if isinstance(argument, tuple):
        return frozenset().union(*(_size_names(a) for a in argument)) if argument else frozenset()
    return frozenset()


def _range(symbol: str, graph: Graph) -> dict[str, int]:
    low, high = graph.extents.get(symbol, (1, 2**31 - 1))
    return {"min": max(low, 1), "max": min(high, 2**31 - 1)}


def _roundings(program: Program) -> tuple[Rounding, ...]:
    binding = [
        Rounding(
            point=f"the value {name}, before it is read again", to=DType.T, binding=True, why="The model rounds it"
        )
        for name in rounding_values(program)
    ]
    if all(".".join(s.op.split(".")[:2]) in _MOVING for s in program.steps):
        return tuple(binding)
    allowed = Rounding(
        point="the result of every operator",
        to=DType.T,
        binding=False,
        why="The framework stores it; a kernel need not",
    )
    return (*binding, allowed)


def _sweep(dims: Mapping[str, Dim], at: Mapping[str, int]) -> Sweep:
    def inside(name: str, size: int) -> bool:
        upper = dims[name].max
        return size >= dims[name].min and (upper is None or size <= upper)

    shapes = [dict(at)]
    for tried in _TRIED:
        shape = {name: tried if inside(name, tried) else at[name] for name in dims}
        if shape not in shapes:
            shapes.append(shape)
    vary = {name: tuple(v for v in (3, 5, 16, 65) if inside(name, v)) for name in dims}
    return Sweep(correctness=tuple(shapes), performance=(dict(at),), vary={n: v for n, v in vary.items() if v})


__all__ = ["RegionContract", "UnsupportedRegionError", "describe", "program_digest", "region_contract"]
