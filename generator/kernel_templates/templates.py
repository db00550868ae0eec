"""From a spec and parameters to a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from generator.kernel_templates.cpu import blocks as cpu_blocks
from generator.kernel_templates.cpu import elementwise as cpu_elementwise
from generator.kernel_templates.cpu import gemm as cpu_gemm
from generator.kernel_templates.cpu import rows as cpu_rows
from generator.kernel_templates.cuda import blocks as cuda_blocks
from generator.kernel_templates.cuda import elementwise as cuda_elementwise
from generator.kernel_templates.cuda import gemm as cuda_gemm
from generator.kernel_templates.cuda import gemv as cuda_gemv
from generator.kernel_templates.cuda import rows as cuda_rows
from generator.kernel_templates.cuda import tensor_gemm as cuda_tensor_gemm
from generator.kernel_templates.cuda import walking_gemm as cuda_walking_gemm
from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemmParameters,
    GemvParameters,
    Parameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.rows import as_rows
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemmSpec,
    NormSpec,
    RowReductionSpec,
    RowSpec,
    SoftmaxSpec,
    Spec,
)
from generator.kernel_templates.stage import Block, Stage, assemble
from kb.candidate import Candidate
from kb.contract import Contract, DimKind
from kb.dtype import Target
from kb.expr import parse

# Names the templates' own sources use: a contract that a spec is instantiated for may not have them.
_LOCALS = """
a active b best both_sums c column columns count e fill fill_next filled find finish first first_column first_row
first_tile first_token found from half heads i index inner inside j k k0 lane last last_tile m middle n next
next_column next_tile of_w of_x p pack packs part parts piece pieces r rank rest rotate row row0 rows s several shared
shared_sums some_rows split stages start start_of stop stride sums t t0 tile to to_w to_x total tx ty unit use values
w_rows walk walks warp weight_rows winner winners x_rows x_tile
"""
LOCALS = frozenset(_LOCALS.split())

_FAMILIES: dict[type[Parameters], tuple[str, str, str]] = {
    ElementwiseParameters: ("elementwise", "a thread takes a few neighbouring points, as packs", "memory bandwidth."),
    RowParameters: ("rows", "a warp or a block owns a row and passes over it once a reduction", "memory bandwidth."),
    GemvParameters: ("gemv", "a few warps own a row of the weight and read it once", "the read of the weight."),
    GemmParameters: ("gemm", "tiles of both operands as float32 in shared memory", "arithmetic on CUDA cores."),
    TensorGemmParameters: (
        "tensor_gemm",
        "weights stream through shared memory past tensor cores, their rows on the product's rows",
        "the read of the weight for few rows, then tensor cores.",
    ),
}
_CPU_IDEA = {
    ElementwiseParameters: "pieces of rows shared among the threads",
    RowParameters: "a thread owns a row and passes over it once a reduction",
    GemvParameters: "a thread owns a block of weight rows and reads each once for four rows of x",
}


def family(parameters: Parameters) -> str:
    """The template family: elementwise, rows, gemv, gemm or tensor_gemm."""
    return _FAMILIES[type(parameters)][0]


def instantiate(spec: Spec, parameters: Parameters, contract: Contract, target: Target) -> Candidate:
    """The candidate that computes ``spec`` with these parameters, its entry named after the family.

    Tensors and scalars the spec names must be the contract's. Raises ValueError when they are not, when a contraction
    is a runtime dim, or when the parameters are of another family.
    """
    check(spec, contract)
    name, idea, bound = _FAMILIES[type(parameters)]
    if target is Target.CPU:
        idea = _CPU_IDEA.get(type(parameters), idea)
    made = stage(spec, parameters, contract, target, f"{name}_kernel")
    return assemble(contract, target, (made,), library(target), idea=(f"{idea}.",), bound=bound)


def library(target: Target) -> Mapping[str, Block]:
    """Building blocks by name."""
    return cuda_blocks.BLOCKS if target is Target.CUDA else cpu_blocks.BLOCKS


def stage(
    spec: Spec, parameters: Parameters, contract: Contract, target: Target, entry: str, when: str | None = None
) -> Stage:
    """One launch that computes ``spec``. Raises ValueError where spec and parameters do not belong together."""
    cuda = target is Target.CUDA
    match spec, parameters:
        case ElementwiseSpec(), ElementwiseParameters():
            make = cuda_elementwise.elementwise_stage if cuda else cpu_elementwise.elementwise_stage
            return make(spec, parameters, entry, when)
        case ((RowSpec() | RowReductionSpec() | SoftmaxSpec() | NormSpec()), RowParameters()):
            rows = as_rows(spec)
            if not cuda:
                return cpu_rows.row_stage(rows, entry, when)
            return cuda_rows.row_stage(rows, parameters, entry, when, contract.dims_of(DimKind.RUNTIME))
        case GemmSpec(), GemvParameters():
            if not cuda:
                return cpu_gemm.gemm_stage(spec, parameters.rows, entry, when)
            return cuda_gemv.gemv_stage(spec, parameters, entry, when, contract.dims_of(DimKind.RUNTIME))
        case GemmSpec(), GemmParameters() if cuda:
            return cuda_gemm.gemm_stage(spec, parameters, entry, when)
        case GemmSpec(), TensorGemmParameters() if cuda:
            make_tensor = (
                cuda_walking_gemm.walking_gemm_stage if parameters.walk else cuda_tensor_gemm.tensor_gemm_stage
            )
            return make_tensor(spec, parameters, entry, when, contract.dims_of(DimKind.RUNTIME))
    raise ValueError(f"{type(parameters).__name__} cannot make a {type(spec).__name__} on {target.value}")


def check(spec: Spec, contract: Contract) -> None:
    """Raises ValueError where the spec names what the contract does not have."""
    tensors = {t.name: t for t in contract.tensors}
    scalars = {s.name for s in contract.scalars}
    stores = (*spec.stores, *(spec.row_stores if isinstance(spec, RowSpec) else ()))
    for arg in (*spec.inputs, *(s.to for s in stores)):
        if arg.name not in tensors:
            raise ValueError(f"{contract.id} has no tensor '{arg.name}'")
        if tensors[arg.name].dtype is not arg.dtype:
            wanted = tensors[arg.name].dtype.value
            raise ValueError(f"{contract.id}.{arg.name} is {wanted}, the spec says {arg.dtype.value}")
    for name in spec.scalars:
        if name not in scalars:
            raise ValueError(f"{contract.id} has no scalar '{name}'")
    if clash := LOCALS & {*tensors, *scalars, *contract.dims}:
        raise ValueError(f"{contract.id}: '{min(clash)}' is a name the templates use themselves; call it otherwise")
    runtime = set(contract.dims_of(DimKind.RUNTIME))
    if isinstance(spec, GemmSpec):
        for name in (spec.x, spec.weight):
            if name not in tensors or tensors[name].dtype is not spec.dtype:
                raise ValueError(f"{contract.id} has no tensor '{name}' of {spec.dtype.value}")
        fixed: Sequence[object] = (spec.n, spec.k, *spec.parts)
        if any(isinstance(s, str) and parse(s).names & runtime for s in fixed):
            raise ValueError("n and k of a product are constants of the compiled kernel, not runtime dims")
