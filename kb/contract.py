"""The contract Σ(p): everything that is fixed about a fused pattern, whoever writes its kernel.

One typed object serves every consumer. Shapes and sizes are expressions over the contract's own dims, so the
renderer, the validator, the runtime and the docs all read the same numbers and none of them repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kb.dtype import DType, DTypeName, TargetName
from kb.expr import Expr, ExprError
from kb.principle import Status
from kb.text import ContractId, Line, Prose, Slug, Symbol

# Built when first used: validators of parts are built into the whole, so building each at import would double the work.
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

# Names a launch expression may read besides the contract's dims.
DEVICE_SYMBOLS = ("num_sms",)


class DimKind(StrEnum):
    """How a dim reaches the kernel."""

    STATIC = "static"  # compile-time constant
    FLAG = "flag"  # compile-time 0 or 1
    RUNTIME = "runtime"  # int32 argument
    WORKLOAD = "workload"  # known to whoever makes inputs, unknown to the kernel


class Dim(BaseModel):
    """A named size or flag."""

    model_config = _FROZEN

    kind: Annotated[DimKind, Field(strict=False)]
    doc: Line
    min: int = Field(default=1, ge=0)
    max: int | None = None


class Role(StrEnum):
    """Direction of a tensor argument."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


class Early(StrEnum):
    """What of a tensor a call launched early finds there before it waits for the kernel in front of it."""

    ALL = "all"
    ALL_BUT_NEWEST = "all_but_newest"


# A tensor of the storage type with one of these in its shape holds what a step computes: its rows, or a paged cache.
STEP_DIMS = frozenset({"num_tokens", "batch_size", "num_blocks"})


class Tensor(BaseModel):
    """A tensor argument, dense and row-major over ``shape``."""

    model_config = _FROZEN

    name: Symbol
    role: Annotated[Role, Field(strict=False)]
    shape: Annotated[tuple[Expr, ...], Field(min_length=1, strict=False)]
    dtype: DTypeName
    doc: Line
    align: Literal[4, 8, 16, 32, 64, 128] = Field(default=16, description="Bytes the first element is aligned to.")
    present_when: Expr | None = Field(default=None, description="Else the argument is a null pointer.")
    writes: Line | None = Field(default=None, description="For inout: exactly which elements change.")
    traffic: Expr | None = Field(
        default=None, description="Elements that must move, when not the whole tensor once (inout: twice)."
    )
    early: Annotated[Early | None, Field(strict=False)] = Field(
        default=None,
        description=(
            "A permission: what of it may be read before a dependent launch waits; all, or all_but_newest (of a paged "
            "cache, for the last position of each sequence). Default: nothing of what steps compute, all of the rest."
        ),
    )

    @property
    def ready(self) -> Early | None:
        """What is there early, as declared or by default; None for nothing. A tensor that is written, or of type T with
        rows of the step or blocks of a cache, may come from the kernel in front; weights, tables and indices are there
        before a step."""
        if self.early is not None:
            return self.early
        computed = any(expr.names & STEP_DIMS for expr in self.shape) and self.dtype.value == "T"
        return None if self.role is not Role.IN or computed else Early.ALL


class Scalar(BaseModel):
    """A scalar argument passed by value."""

    model_config = _FROZEN

    name: Symbol
    dtype: DTypeName
    doc: Line
    example: float = Field(allow_inf_nan=False, description="A typical value, used by tests.")


class Rounding(BaseModel):
    """One point where a value is, or may be, rounded to a narrower type."""

    model_config = _FROZEN

    point: Line
    to: DTypeName
    binding: bool = Field(description="True: required. False: allowed, keeping float32 is better.")
    why: Line


class DtypeRules(BaseModel):
    """Exhaustive dtype rules."""

    model_config = _FROZEN

    storage: Annotated[tuple[DTypeName, ...], Field(min_length=1, strict=False)] = Field(description="What T may be.")
    accumulate: DTypeName = Field(description="Type of every sum of products.")
    rounding: Annotated[tuple[Rounding, ...], Field(strict=False)] = ()


class Tolerance(BaseModel):
    """error(candidate) <= kappa * error(baseline) + floor * scale, all against the float64 truth."""

    model_config = _FROZEN

    kappa: float = Field(default=1.25, ge=1, allow_inf_nan=False)
    floor: float = Field(description="In units of eps(T) relative to the output's RMS.", ge=0, allow_inf_nan=False)
    index_margin: float | None = Field(
        default=None, description="Index outputs: a different index passes if its logit is within this many eps(T)."
    )


Distribution = Literal[
    "normal", "outliers", "tiny", "zeros", "one_hot", "large", "uniform", "neg_inf", "constant", "ramp"
]


class Numerics(BaseModel):
    """How right is judged."""

    model_config = _FROZEN

    reference: Symbol = Field(description="Name of the float64 reference.")
    tolerance: Tolerance
    distributions: Annotated[tuple[Distribution, ...], Field(min_length=1, strict=False)]
    edge_cases: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    deterministic: bool = Field(default=True, description="Two runs agree bit for bit.")


class Precondition(BaseModel):
    """A hard gate: the pattern is only used where it holds."""

    model_config = _FROZEN

    name: Slug
    doc: Line
    dims: Expr | None = Field(default=None, description="Checked on dims; absent: structural, checked on the graph.")


class Variant(BaseModel):
    """A regime that deserves a kernel of its own."""

    model_config = _FROZEN

    id: Slug
    when: Expr
    doc: Line


class Sweep(BaseModel):
    """Shapes that are always tried. ``vary`` lists what the validator perturbs for the shapes it keeps to itself."""

    model_config = _FROZEN

    correctness: Annotated[tuple[dict[Symbol, int], ...], Field(min_length=1, strict=False)]
    performance: Annotated[tuple[dict[Symbol, int], ...], Field(min_length=1, strict=False)]
    vary: dict[Symbol, Annotated[tuple[int, ...], Field(strict=False)]] = Field(default_factory=dict)


class Contract(BaseModel):
    """One fused pattern, ``contracts/<id>.yaml``."""

    model_config = _FROZEN

    id: ContractId
    title: Line
    family: Slug
    status: Annotated[Status, Field(strict=False)]
    version: int = Field(ge=1)
    summary: Prose
    semantics: Prose = Field(description="The mathematics, tensor by tensor, in words and formulas.")
    dims: dict[Symbol, Dim]
    constraints: Annotated[tuple[Expr, ...], Field(strict=False)] = ()
    tensors: Annotated[tuple[Tensor, ...], Field(min_length=1, strict=False)]
    scalars: Annotated[tuple[Scalar, ...], Field(strict=False)] = ()
    dtypes: DtypeRules
    numerics: Numerics
    preconditions: Annotated[tuple[Precondition, ...], Field(strict=False)] = ()
    variants: Annotated[tuple[Variant, ...], Field(min_length=1, strict=False)]
    baselines: dict[TargetName, Annotated[tuple[Symbol, ...], Field(strict=False)]]
    performance_floor: float = Field(default=0.99, gt=0, le=1, description="θ: T_baseline / T_candidate must reach it.")
    rounds: int = Field(default=4, ge=4, description="N: rounds before a search may give up.")
    sweep: Sweep

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        names = [t.name for t in self.tensors] + [s.name for s in self.scalars] + list(self.dims)
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name '{name}' is used twice")
        if not any(t.role is not Role.IN for t in self.tensors):
            raise ValueError("no tensor is written: at least one 'out' or 'inout' is needed")
        for tensor in self.tensors:
            if tensor.early is Early.ALL_BUT_NEWEST and not {"block_table", "seq_lens"} <= set(names):
                raise ValueError(f"tensors.{tensor.name}.early: newest positions need 'block_table' and 'seq_lens'")
            if tensor.early is not None and tensor.role is not Role.IN:
                raise ValueError(f"tensors.{tensor.name}.early: only an 'in' tensor can say so; this one is written")
        for where, expr in self._expressions():
            unknown = sorted(expr.names - set(self.dims))
            if unknown:
                raise ValueError(f"{where} reads '{unknown[0]}', which is not a dim of this contract")
        for where, shape in self.sweep_shapes():
            try:
                self.check_dims(shape)
            except ValueError as error:
                raise ValueError(f"sweep.{where}: {error}") from None
        return self

    def dims_of(self, *kinds: DimKind) -> tuple[str, ...]:
        """Names of the dims of these kinds, in declared order."""
        return tuple(name for name, dim in self.dims.items() if dim.kind in kinds)

    def tensor(self, name: str) -> Tensor:
        """The tensor called ``name``. Raises KeyError."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def sweep_shapes(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Every stated shape with its place in the file, such as ``performance.0``."""
        for i, shape in enumerate(self.sweep.correctness):
            yield f"correctness.{i}", shape
        for i, shape in enumerate(self.sweep.performance):
            yield f"performance.{i}", shape

    def check_dims(self, dims: Mapping[str, int]) -> None:
        """Raises ValueError when ``dims`` misses or adds a name, leaves a range, or breaks a constraint."""
        missing = [name for name in self.dims if name not in dims]
        if missing:
            raise ValueError(f"dim '{missing[0]}' has no value")
        unknown = [name for name in dims if name not in self.dims]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is not a dim of {self.id}")
        for name, dim in self.dims.items():
            upper = 1 if dim.kind is DimKind.FLAG else dim.max
            lower = 0 if dim.kind is DimKind.FLAG else dim.min
            if dims[name] < lower or (upper is not None and dims[name] > upper):
                raise ValueError(f"{name} = {dims[name]} is outside {lower}..{upper if upper is not None else ''}")
        for constraint in self.constraints:
            if not constraint.evaluate(dims):
                raise ValueError(f"constraint '{constraint}' does not hold")

    def shape_of(self, tensor: Tensor, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Concrete shape. Raises ExprError when a dim is missing."""
        return tuple(e.evaluate_int(dims) for e in tensor.shape)

    def is_present(self, tensor: Tensor, dims: Mapping[str, int]) -> bool:
        """False where the argument is a null pointer at these dims."""
        return tensor.present_when is None or bool(tensor.present_when.evaluate(dims))

    def bytes_moved(self, dims: Mapping[str, int], storage: DType) -> int:
        """Fewest bytes that must cross device memory: each input read once, each output written once."""
        return sum(self._traffic(t, dims, storage) for t in self.tensors if self.is_present(t, dims))

    def variant_for(self, dims: Mapping[str, int]) -> Variant | None:
        """The first variant whose condition holds."""
        return next((v for v in self.variants if v.when.evaluate(dims)), None)

    def _traffic(self, tensor: Tensor, dims: Mapping[str, int], storage: DType) -> int:
        itemsize = tensor.dtype.bind(storage).itemsize
        if tensor.traffic is not None:
            return tensor.traffic.evaluate_int(dims) * itemsize
        count = 1
        for size in self.shape_of(tensor, dims):
            count *= size
        return count * itemsize * (2 if tensor.role is Role.INOUT else 1)

    def _expressions(self) -> Iterator[tuple[str, Expr]]:
        for tensor in self.tensors:
            for expr in tensor.shape:
                yield f"tensors.{tensor.name}.shape", expr
            for label, maybe in (("present_when", tensor.present_when), ("traffic", tensor.traffic)):
                if maybe is not None:
                    yield f"tensors.{tensor.name}.{label}", maybe
        for expr in self.constraints:
            yield "constraints", expr
        for variant in self.variants:
            yield f"variants.{variant.id}.when", variant.when
        for precondition in self.preconditions:
            if precondition.dims is not None:
                yield f"preconditions.{precondition.name}.dims", precondition.dims


__all__ = ["DEVICE_SYMBOLS", "Contract", "Dim", "DimKind", "Early", "ExprError", "Role", "Scalar", "Tensor"]
