"""One small contract a kernel template, stated by a program of the framework's operators, with the shapes where
templates break: widths that fill no tile or pack, a contraction with a tail, one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemmParameters,
    GemvParameters,
    Parameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemvSpec,
    NormKind,
    NormSpec,
    Op,
    Reduction,
    RowReductionSpec,
    SoftmaxSpec,
    Spec,
    Store,
    TensorArg,
    columns,
    dense,
)
from generator.kernel_templates.specs import Step as Scalar
from kb.contract import Contract, Dim, DimKind, DtypeRules, Numerics, Role, Rounding, Sweep, Tensor, Tolerance, Variant
from kb.dtype import STORAGE_DTYPES, DType, Target
from kb.expr import Expr
from kb.principle import Status
from runtime.baselines.registry import FRAMEWORK
from runtime.programs import Content, Input, Layout, Output, Program, Ref, Size, Step, find_program, register_program
from validator.references import PROGRAM

ROWS_BY_COLUMNS = ("num_rows", "num_columns")


@dataclass(frozen=True, slots=True)
class Case:
    """A spec with the contract that says what it must compute, and parameters to try on each target."""

    name: str
    contract: Contract
    spec: Spec
    cuda: tuple[Parameters, ...]
    cpu: tuple[Parameters, ...]

    def parameters(self, target: Target) -> tuple[Parameters, ...]:
        """What to try on ``target``."""
        return self.cuda if target is Target.CUDA else self.cpu


def cases() -> dict[str, Case]:
    """Every case by name. Their programs are registered in this process."""
    made = (_chain(), _transposed(), _mean(), _largest(), _softmax(), _layer_norm(), linear(), _ragged_linear())
    return {case.name: case for case in made}


def runtime_cases() -> dict[str, Case]:
    """The same with sizes that are arguments: all but what a product must know when it is compiled."""
    return {f"{case.name}_at_run_time": _at_run_time(case) for case in cases().values()}


def _at_run_time(case: Case) -> Case:
    old = case.contract
    fixed = ("num_outputs", "num_inputs")
    dims = {n: d if n in fixed else d.model_copy(update={"kind": DimKind.RUNTIME}) for n, d in old.dims.items()}
    contract = old.model_copy(update={"id": f"{old.id}_at_run_time", "dims": dims})
    program = find_program(old.id)
    assert program is not None  # _contract registered it
    register_program(contract.id, program)
    cuda = tuple(p for p in case.cuda if not (isinstance(p, RowParameters) and p.keep)) or case.cuda
    return replace(case, name=f"{case.name}_at_run_time", contract=contract, cuda=cuda)


_POINTS = (ElementwiseParameters(8, 256), ElementwiseParameters(2, 128), ElementwiseParameters(1, 256))
_POINTS_CPU = (ElementwiseParameters(8, 512),)
_ROWS = (
    RowParameters(8, 256, 1, True),
    RowParameters(4, 32, 4, True),
    RowParameters(8, 128, 1, False),
    RowParameters(1, 32, 8, False),
)
_ROWS_CPU = (RowParameters(1, 32, 1, False),)
PRODUCTS = (
    GemvParameters(1, 0, 8, 8, 4),
    GemvParameters(2, 2, 4, 4, 8),
    GemvParameters(1, 4, 8, 2, 2),
    GemmParameters(),
    GemmParameters(64, 64, 16, 4, 4),
    TensorGemmParameters(0, 64, 64, 4, 4, 1),
    TensorGemmParameters(0, 32, 128, 3, 2, 2),
    TensorGemmParameters(16, 128, 64, 4, 4, 4),
    TensorGemmParameters(0, 64, 64, 6, 4, 8),
    TensorGemmParameters(0, 128, 64, 2, 8, 1, True),
    TensorGemmParameters(0, 64, 64, 4, 4, 1, False, 1),
    TensorGemmParameters(0, 32, 64, 3, 2, 4, False, 2),
)
_SHAPES = ((1, 1), (1, 4096), (5, 130), (3, 64), (9, 1027), (64, 8))


def _chain() -> Case:
    """silu(1.5 * x + bias): a chain with a broadcast operand."""
    spec = ElementwiseSpec(
        ROWS_BY_COLUMNS,
        (dense("input", ROWS_BY_COLUMNS), columns("bias", 2)),
        (
            Scalar("scaled", Op.MUL, ("input", 1.5)),
            Scalar("moved", Op.ADD, ("scaled", "bias")),
            Scalar("y", Op.SILU, ("moved",)),
        ),
        (Store(dense("output", ROWS_BY_COLUMNS), "y"),),
    )
    steps = (
        Step("aten.mul.Tensor", (Ref("v0"), 1.5), (), ("v2",)),
        Step("aten.add.Tensor", (Ref("v2"), Ref("v1")), (), ("v3",)),
        Step("aten.silu.default", (Ref("v3"),), (), ("v4",)),
    )
    shapes = {"input": ROWS_BY_COLUMNS, "bias": ("num_columns",), "output": ROWS_BY_COLUMNS}
    contract = _contract("chain", shapes, {"bias": Content.BIAS}, steps, "v4", _pairs(_SHAPES))
    return Case("chain", contract, spec, _POINTS, _POINTS_CPU)


def _transposed() -> Case:
    """2 * x, stored transposed: nothing is contiguous on both sides."""
    other = ("num_columns", "num_rows")
    spec = ElementwiseSpec(
        other,
        (TensorArg("input", DType.T, (1, "num_columns")),),
        (Scalar("y", Op.MUL, ("input", 2.0)),),
        (Store(dense("output", other), "y"),),
    )
    steps = (
        Step("aten.permute.default", (Ref("v0"), (1, 0)), (), ("v1",)),
        Step("aten.mul.Tensor", (Ref("v1"), 2.0), (), ("v2",)),
    )
    contract = _contract("transposed", {"input": ROWS_BY_COLUMNS, "output": other}, {}, steps, "v2", _pairs(_SHAPES))
    return Case("transposed", contract, spec, _POINTS, _POINTS_CPU)


def _reduced(name: str, kind: Reduction, step: Step) -> Case:
    spec = RowReductionSpec(
        ROWS_BY_COLUMNS,
        (dense("input", ROWS_BY_COLUMNS),),
        kind,
        "input",
        (Store(TensorArg("output", DType.T, (1, 0)), "reduced"),),
    )
    shapes = {"input": ROWS_BY_COLUMNS, "output": ("num_rows",)}
    contract = _contract(name, shapes, {}, (step,), "v1", _pairs(_SHAPES))
    return Case(name, contract, spec, _ROWS, _ROWS_CPU)


def _mean() -> Case:
    return _reduced("mean", Reduction.MEAN, Step("aten.mean.dim", (Ref("v0"), (-1,), False), (), ("v1",)))


def _largest() -> Case:
    return _reduced("largest", Reduction.MAX, Step("aten.amax.default", (Ref("v0"), (-1,), False), (), ("v1",)))


def _softmax() -> Case:
    spec = SoftmaxSpec(
        ROWS_BY_COLUMNS,
        (dense("input", ROWS_BY_COLUMNS),),
        "input",
        (Store(dense("output", ROWS_BY_COLUMNS), "probability"),),
    )
    step = Step("aten._softmax.default", (Ref("v0"), -1, False), (), ("v1",))
    shapes = {"input": ROWS_BY_COLUMNS, "output": ROWS_BY_COLUMNS}
    return Case("softmax", _contract("softmax", shapes, {}, (step,), "v1", _pairs(_SHAPES)), spec, _ROWS, _ROWS_CPU)


def _layer_norm() -> Case:
    spec = NormSpec(
        NormKind.LAYER,
        ROWS_BY_COLUMNS,
        (dense("input", ROWS_BY_COLUMNS), columns("gamma", 2), columns("beta", 2)),
        "input",
        1e-5,
        (Store(dense("output", ROWS_BY_COLUMNS), "normed"),),
        weight="gamma",
        bias="beta",
    )
    arguments = (Ref("v0"), (Size("num_columns"),), Ref("v1"), Ref("v2"), 1e-5)
    step = Step("aten.native_layer_norm.default", arguments, (), ("v3", "v4", "v5"))
    shapes = {
        "input": ROWS_BY_COLUMNS,
        "gamma": ("num_columns",),
        "beta": ("num_columns",),
        "output": ROWS_BY_COLUMNS,
    }
    contents = {"gamma": Content.GAMMA, "beta": Content.BIAS}
    contract = _contract("layer_norm", shapes, contents, (step,), "v3", _pairs(_SHAPES[1:]))
    return Case("layer_norm", contract, spec, _ROWS, _ROWS_CPU)


def linear() -> Case:
    """gelu(x @ w^T + b). Widths that fill no tile, contractions with a tail, one row and many."""
    shapes = ((1, 24, 64), (1, 1, 8), (3, 67, 264), (8, 130, 1032), (17, 33, 72), (70, 129, 520))
    return _linear("linear", shapes, PRODUCTS, (GemvParameters(rows=16),))


def _ragged_linear() -> Case:
    """A contraction that is no multiple of 8: CUDA cores alone."""
    shapes = ((1, 5, 10), (33, 66, 37))
    cuda = (GemmParameters(), GemmParameters(16, 64, 32, 1, 4))
    return _linear("ragged_linear", shapes, cuda, (GemvParameters(rows=16),))


def plain_product(rows: int, outputs: int, inputs: int) -> Case:
    """x @ w^T alone, of one shape: what is timed against the library."""
    space = ("num_rows", "num_outputs")
    store = Store(dense("output", space), "acc0")
    spec = GemvSpec("num_rows", "num_outputs", "num_inputs", "input", "weight", (store,))
    tensors = {"input": ("num_rows", "num_inputs"), "weight": ("num_outputs", "num_inputs"), "output": space}
    step = Step("aten.linear.default", (Ref("v0"), Ref("v1")), (), ("v2",))
    dims = {"num_rows": rows, "num_outputs": outputs, "num_inputs": inputs}
    contract = _contract("product", tensors, {"weight": Content.WEIGHT}, (step,), "v2", [dims])
    return Case("product", contract, spec, PRODUCTS, ())


def _linear(
    name: str, shapes: Sequence[tuple[int, int, int]], cuda: tuple[Parameters, ...], cpu: tuple[Parameters, ...]
) -> Case:
    space = ("num_rows", "num_outputs")
    spec = GemvSpec(
        "num_rows",
        "num_outputs",
        "num_inputs",
        "input",
        "weight",
        (Store(dense("output", space), "y"),),
        inputs=(columns("bias", 2),),
        epilogue=(Scalar("moved", Op.ADD, ("acc0", "bias")), Scalar("y", Op.GELU, ("moved",))),
    )
    steps = (
        Step("aten.linear.default", (Ref("v0"), Ref("v1"), Ref("v2")), (), ("v3",)),
        Step("aten.gelu.default", (Ref("v3"),), (), ("v4",)),
    )
    tensors = {
        "input": ("num_rows", "num_inputs"),
        "weight": ("num_outputs", "num_inputs"),
        "bias": ("num_outputs",),
        "output": space,
    }
    contents = {"weight": Content.WEIGHT, "bias": Content.BIAS}
    dims = [dict(zip(("num_rows", "num_outputs", "num_inputs"), s, strict=True)) for s in shapes]
    return Case(name, _contract(name, tensors, contents, steps, "v4", dims), spec, cuda, cpu)


def _pairs(shapes: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    return [dict(zip(ROWS_BY_COLUMNS, shape, strict=True)) for shape in shapes]


def _contract(
    name: str,
    shapes: Mapping[str, Sequence[str]],
    contents: Mapping[str, Content],
    steps: tuple[Step, ...],
    result: str,
    sweep: Sequence[dict[str, int]],
) -> Contract:
    """A contract whose last tensor is written, the others read; the program's values are v0, v1, … in that order."""
    names = list(shapes)
    layouts = {n: _dense_layout(shapes[n]) for n in names}
    inputs = tuple(Input(n, f"v{i}", layouts[n], contents.get(n, Content.ACTIVATION)) for i, n in enumerate(names[:-1]))
    program = Program(inputs, steps, (Output(names[-1], result, layouts[names[-1]]),))
    contract = Contract(
        id=f"template_{name}",
        title=f"Template check: {name}",
        family="template-check",
        status=Status.ACCEPTED,
        version=1,
        summary="What a kernel template must compute, stated by the framework's operators.",
        semantics="The program's operators, one after the other.",
        dims={d: Dim(kind=DimKind.STATIC, doc="A size of the call") for d in sweep[0]},
        tensors=tuple(
            Tensor(
                name=n,
                role=Role.OUT if n == names[-1] else Role.IN,
                shape=tuple(Expr(s) for s in shapes[n]),
                dtype=DType.T,
                doc=f"The tensor {n}",
            )
            for n in names
        ),
        dtypes=DtypeRules(
            storage=STORAGE_DTYPES,
            accumulate=DType.FLOAT32,
            rounding=(Rounding(point="the output", to=DType.T, binding=True, why="Storage"),),
        ),
        numerics=Numerics(
            reference=PROGRAM,
            tolerance=Tolerance(kappa=1.25, floor=1.0),
            distributions=("normal", "outliers", "tiny", "zeros"),
        ),
        variants=(Variant(id="all", when=Expr("1 == 1"), doc="Every size"),),
        baselines={Target.CUDA: (FRAMEWORK,), Target.CPU: (FRAMEWORK,)},
        sweep=Sweep(correctness=tuple(sweep), performance=(sweep[-1],)),
    )
    register_program(contract.id, program)
    return contract


def _dense_layout(shape: Sequence[str]) -> Layout:
    sizes = tuple(Expr(s) for s in shape)
    return Layout(sizes, sizes, tuple(range(len(sizes))), sizes)
