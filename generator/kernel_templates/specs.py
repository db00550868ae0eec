"""What a template kernel computes, as data: no graph, no tensors, no source.

Tensors and scalars are named as in the contract the kernel is made for (see ``instantiate``); sizes are integers or
expressions over its dims. All arithmetic is float32 between loads and stores; ``Op.ROUND`` states a rounding point.

    relu = ElementwiseSpec(("rows", "columns"), (dense("x", ("rows", "columns")),),
                           (Step("y", Op.RELU, ("x",)),), (Store("out", dense("out", ("rows", "columns")), "y"),))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from generator.kernel_templates.sizes import Size, check_size, dense_strides
from kb.dtype import DType


class Op(StrEnum):
    """One scalar operation. Comparisons give 1.0 or 0.0; ``WHERE`` takes (condition, if not zero, else)."""

    COPY = "copy"
    ROUND = "round"  # to Step.dtype and back to float32
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    NEG = "neg"
    ABS = "abs"
    SQUARE = "square"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    EXP = "exp"
    LOG = "log"
    SIN = "sin"
    COS = "cos"
    TANH = "tanh"
    ERF = "erf"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"  # exact, by erf
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    MAXIMUM = "maximum"  # a NaN in either operand is the result
    MINIMUM = "minimum"
    POW = "pow"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    WHERE = "where"


ARITY = {
    **dict.fromkeys(Op, 1),
    **dict.fromkeys(
        (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.POW, Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE), 2
    ),
    Op.WHERE: 3,
}

Operand = str | float


@dataclass(frozen=True, slots=True)
class Step:
    """``out = op(args)``. An operand is the name of an input, a scalar or an earlier step, or a number."""

    out: str
    op: Op
    args: tuple[Operand, ...]
    dtype: DType | None = None  # for ROUND only

    def __post_init__(self) -> None:
        if len(self.args) != ARITY[self.op]:
            raise ValueError(f"{self.op.value} takes {ARITY[self.op]} operands, '{self.out}' has {len(self.args)}")
        if (self.dtype is not None) != (self.op is Op.ROUND):
            raise ValueError(f"'{self.out}': a dtype belongs to round, and round needs one")


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor argument seen over an iteration space: element (i, j, …) lies at offset + i * strides[0] + ….

    ``strides`` has one stride a dim of the space, in elements; 0 broadcasts. ``dtype`` may be T, bfloat16, float16,
    float32, int32 or int64 (integers are read as float32: exact below 2**24).
    """

    name: str
    dtype: DType
    strides: tuple[Size, ...]
    offset: Size = 0

    def __post_init__(self) -> None:
        for size in (*self.strides, self.offset):
            check_size(size)


def dense(name: str, shape: Sequence[Size], dtype: DType = DType.T) -> TensorArg:
    """A tensor of the space's own shape, dense and row-major."""
    return TensorArg(name, dtype, dense_strides(shape))


def columns(name: str, rank: int, dtype: DType = DType.T) -> TensorArg:
    """A vector along the space's last dim, the same for all others (a bias, a gamma)."""
    return TensorArg(name, dtype, (*([0] * (rank - 1)), 1))


@dataclass(frozen=True, slots=True)
class Store:
    """``value`` (a step's or an input's name) written to ``to``, converted to its dtype."""

    to: TensorArg
    value: str


@dataclass(frozen=True, slots=True)
class ElementwiseSpec:
    """A chain of scalar operations at every point of ``shape``.

    Written tensors may be read at the very point they are written at, and at no other. ``scalars``: names of float32
    scalar arguments that steps read.
    """

    shape: tuple[Size, ...]
    inputs: tuple[TensorArg, ...]
    steps: tuple[Step, ...]
    stores: tuple[Store, ...]
    scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.shape, self.inputs, self.stores)
        _check_names(self.inputs, self.scalars, self.steps, self.stores)


class Reduction(StrEnum):
    """How the last dim is folded. A NaN among the values is the maximum and the minimum."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Reduce:
    """``out`` = ``kind`` of ``value`` over the last dim: one number a row, for the phases after it."""

    out: str
    kind: Reduction
    value: str


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Row programs: scalar steps and reductions over the last dim of ``shape`` in any order, then stores.

    Everything is computed for a whole row by one owner. A step that reads only row values (results of reductions,
    scalars) is a row value itself. ``stores`` write at every point; ``row_stores`` write row values, once a row, to
    tensors whose last stride is ignored. The other row specs are written as one of these (``as_rows``).
    """

    shape: tuple[Size, ...]
    inputs: tuple[TensorArg, ...]
    phases: tuple[Step | Reduce, ...]
    stores: tuple[Store, ...] = ()
    row_stores: tuple[Store, ...] = ()
    scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.shape, self.inputs, (*self.stores, *self.row_stores))
        _check_names(self.inputs, self.scalars, self.phases, (*self.stores, *self.row_stores))


@dataclass(frozen=True, slots=True)
class RowReductionSpec:
    """``kind`` over the last dim of ``shape`` of what ``prologue`` makes of the inputs; ``epilogue`` on the result.

    ``value``: name that is reduced; ``result``: name the epilogue and the stores read it by.
    """

    shape: tuple[Size, ...]
    inputs: tuple[TensorArg, ...]
    kind: Reduction
    value: str
    stores: tuple[Store, ...]
    prologue: tuple[Step, ...] = ()
    epilogue: tuple[Step, ...] = ()
    result: str = "reduced"
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SoftmaxSpec:
    """softmax over the last dim of ``shape`` of ``value``, as ``result``; ``log``: its logarithm."""

    shape: tuple[Size, ...]
    inputs: tuple[TensorArg, ...]
    value: str
    stores: tuple[Store, ...]
    prologue: tuple[Step, ...] = ()
    epilogue: tuple[Step, ...] = ()
    result: str = "probability"
    log: bool = False
    scalars: tuple[str, ...] = ()


class NormKind(StrEnum):
    """RMSNorm, or LayerNorm with the mean taken out."""

    RMS = "rms"
    LAYER = "layer"


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMSNorm or LayerNorm over the last dim of ``shape`` of ``value``, then gamma and beta, as ``result``.

    ``weight`` and ``bias`` are names of inputs (see ``columns``) or None; ``eps`` a scalar argument's name or a
    number. ``round_normalised``: the normalised value is rounded to this type before it meets the weight.
    ``prologue`` may add a residual first, and a store may write the sum back.
    """

    kind: NormKind
    shape: tuple[Size, ...]
    inputs: tuple[TensorArg, ...]
    value: str
    eps: Operand
    stores: tuple[Store, ...]
    weight: str | None = None
    bias: str | None = None
    prologue: tuple[Step, ...] = ()
    epilogue: tuple[Step, ...] = ()
    round_normalised: DType | None = None
    result: str = "normed"
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """Products of ``x`` [m, k] with rows of ``weight`` [rows, k], both dense and row-major, and an epilogue.

    For each of ``parts`` (offsets in rows of the weight) there is a sum ``acc0``, ``acc1``, …:
    accP[i, j] = sum over l of x[i, l] * weight[parts[P] + j, l], for i < m, j < n, in float32. ``epilogue`` steps read
    them, ``inputs`` over the space (m, n) and ``scalars``; ``stores`` write over (m, n). ``x_dtype`` is the type of x
    and weight. k must be a multiple of 8, so that every row starts on 16 bytes (8 for 2-byte types).
    """

    m: Size
    n: Size
    k: Size
    x: str
    weight: str
    stores: tuple[Store, ...]
    parts: tuple[Size, ...] = (0,)
    inputs: tuple[TensorArg, ...] = ()
    epilogue: tuple[Step, ...] = ()
    scalars: tuple[str, ...] = ()
    dtype: DType = DType.T

    def __post_init__(self) -> None:
        for size in (self.m, self.n, self.k, *self.parts):
            check_size(size)
        _check((self.m, self.n), self.inputs, self.stores)
        sums = tuple(TensorArg(f"acc{i}", DType.FLOAT32, (0, 0)) for i in range(len(self.parts)))
        _check_names((*self.inputs, *sums), self.scalars, self.epilogue, self.stores)


@dataclass(frozen=True, slots=True)
class GemvSpec(GemmSpec):
    """The same products where ``m`` is small: every weight is read once, by the one warp or group that owns its row."""


Spec = ElementwiseSpec | RowSpec | RowReductionSpec | SoftmaxSpec | NormSpec | GemmSpec | GemvSpec


def _check(shape: Sequence[Size], inputs: Sequence[TensorArg], stores: Sequence[Store]) -> None:
    if not shape:
        raise ValueError("a spec needs at least one dim; write (1,) for a single element")
    for size in shape:
        check_size(size)
    if not stores:
        raise ValueError("a spec that stores nothing computes nothing")
    for arg in (*inputs, *(s.to for s in stores)):
        if len(arg.strides) != len(shape):
            raise ValueError(f"'{arg.name}' has {len(arg.strides)} strides over a space of {len(shape)} dims")


def _check_names(
    inputs: Sequence[TensorArg], scalars: Sequence[str], phases: Sequence[Step | Reduce], stores: Sequence[Store]
) -> None:
    known = {a.name for a in inputs} | set(scalars)
    for phase in phases:
        read = phase.args if isinstance(phase, Step) else (phase.value,)
        for name in read:
            if isinstance(name, str) and name not in known:
                raise ValueError(f"'{phase.out}' reads '{name}', which is neither an input nor an earlier step")
        if phase.out in known:
            raise ValueError(f"'{phase.out}' is defined twice")
        known.add(phase.out)
    for store in stores:
        if store.value not in known:
            raise ValueError(f"the store to '{store.to.name}' reads '{store.value}', which nothing defines")
