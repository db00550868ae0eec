"""Which parameters a spec may have, and why not; and the bounded list of those worth a try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as combinations

from generator.kernel_templates.cuda.rows import KEPT_ELEMENTS
from generator.kernel_templates.cuda.tensor_gemm import PAD
from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemmParameters,
    GemvParameters,
    Parameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.sizes import multiple_of, value
from generator.kernel_templates.specs import (
    ElementwiseSpec,
    GemmSpec,
    GemvSpec,
    NormSpec,
    RowReductionSpec,
    RowSpec,
    SoftmaxSpec,
    Spec,
)
from kb.dtype import DType, Target
from runtime.device import assumed_cuda_device

_ROW_SPECS = (RowSpec, RowReductionSpec, SoftmaxSpec, NormSpec)
_STATIC_SHARED = 48 << 10
_Dims = Mapping[str, int] | None


def legal(spec: Spec, parameters: Parameters, target: Target, arch: str, dims: _Dims = None) -> str | None:
    """Why ``parameters`` cannot be, or None. What depends on a size that ``dims`` do not give is not decided."""
    match parameters:
        case ElementwiseParameters():
            return _elementwise(spec, parameters)
        case RowParameters():
            return _rows(spec, parameters, target, dims)
        case GemvParameters():
            return _gemv(spec, parameters, target, dims)
        case GemmParameters():
            return _gemm(spec, parameters)
        case TensorGemmParameters():
            return _tensor_gemm(spec, parameters, target, arch, dims)


def space(spec: Spec, target: Target, arch: str, dims: _Dims = None) -> Iterator[Parameters]:
    """Legal parameters worth a try, at most a few dozen, the most promising first; the same for the same spec."""
    for parameters in enumerated(spec, target):
        if legal(spec, parameters, target, arch, dims) is None:
            yield parameters


def enumerated(spec: Spec, target: Target) -> Iterator[Parameters]:
    """The list that ``space`` takes the legal ones from, in the same order."""
    cpu = target is Target.CPU
    if isinstance(spec, ElementwiseSpec):
        for vector, block in ((8, 512),) if cpu else combinations((8, 4, 2, 1), (256, 128)):
            yield ElementwiseParameters(vector, block)
    elif isinstance(spec, _ROW_SPECS):
        if cpu:
            yield RowParameters(vector=1, group=32, rows=1, keep=False)
            return
        for group, rows in ((256, 1), (32, 8), (512, 1), (128, 1), (1024, 1), (32, 4)):
            for vector, keep in ((8, True), (4, True), (8, False), (1, False)):
                yield RowParameters(vector, group, rows, keep)
    elif isinstance(spec, GemmSpec):
        if cpu:
            yield from (GemvParameters(rows=rows) for rows in (64, 16, 256))
            return
        gemv = (
            GemvParameters(rows, split, warps, 8, unroll)
            for rows, split, (warps, unroll) in combinations((1, 2), (0, 1, 2, 4), ((8, 4), (4, 4), (4, 8), (8, 2)))
        )
        tensor = (
            TensorGemmParameters(0, tile_n, tile_k, stages, warps, split)
            for (tile_n, warps), (tile_k, stages), split in combinations(
                ((64, 4), (32, 2), (128, 4), (128, 8)), ((64, 4), (64, 6), (128, 3)), (1, 2, 4, 8)
            )
        )
        walking = (
            TensorGemmParameters(0, tile_n, 64, 4, warps, split, walk=1)
            for tile_n, warps, split in ((64, 4, 4), (64, 4, 8), (128, 8, 4), (64, 4, 1))
        )
        plain = (GemmParameters(), GemmParameters(64, 64, 16, 4, 4), GemmParameters(16, 64, 32, 1, 4))
        small: tuple[Parameters, ...] = tuple(gemv)
        large: tuple[Parameters, ...] = (*tensor, *walking, *plain)
        yield from (*small, *large) if isinstance(spec, GemvSpec) else (*large, *small)


def _elementwise(spec: Spec, p: ElementwiseParameters) -> str | None:
    if not isinstance(spec, ElementwiseSpec):
        return "elementwise parameters belong to an elementwise spec"
    if p.vector not in (1, 2, 4, 8, 16):
        return f"vector = {p.vector}; 1, 2, 4, 8 or 16 elements make whole packs"
    return _block(p.block)


def _rows(spec: Spec, p: RowParameters, target: Target, dims: _Dims) -> str | None:
    if not isinstance(spec, _ROW_SPECS):
        return "row parameters belong to a row spec"
    if p.vector not in (1, 2, 4, 8):
        return f"vector = {p.vector}; 1, 2, 4 or 8 elements make whole packs"
    if p.group > 32 and p.rows != 1:
        return "several rows a block are for groups of one warp"
    if p.rows < 1 or p.group % 32:
        return "a group is whole warps, a block at least one group"
    columns = value(spec.shape[-1], dims)
    if target is Target.CUDA and p.keep and columns is not None:
        kept = -(-columns // (p.group * p.vector)) * p.vector
        if kept > KEPT_ELEMENTS:
            return f"{kept} elements a thread; {KEPT_ELEMENTS} stay in registers"
    return _block(p.group * p.rows)


def _product(spec: Spec) -> str | None:
    return None if isinstance(spec, GemmSpec) else "these parameters belong to a matrix product"


def _gemv(spec: Spec, p: GemvParameters, target: Target, dims: _Dims) -> str | None:
    if (reason := _product(spec)) is not None:
        return reason
    assert isinstance(spec, GemmSpec)
    if target is Target.CPU:
        return None if p.rows >= 1 else "a task is at least one row of the weight"
    if multiple_of(spec.k, 8, dims) is False:
        return "k is no multiple of 8: rows of the weight do not start on 16 bytes"
    if p.warps not in (1, 2, 4, 8, 16, 32) or p.split not in (0, 1, 2, 4, 8, 16, 32) or p.split > p.warps:
        return f"{p.split} warps a row do not divide {p.warps} a block"
    if not (1 <= p.rows <= 4 and 1 <= p.tokens <= 8 and 1 <= p.unroll <= 8):
        return "rows is 1 to 4, tokens 1 to 8, unroll 1 to 8: more does not fit the registers"
    if p.rows * len(spec.parts) * p.unroll > 32 or p.rows * len(spec.parts) * p.tokens > 64:
        return f"{p.rows * len(spec.parts)} rows by {p.unroll} packs and {p.tokens} tokens do not fit the registers"
    return None


def _gemm(spec: Spec, p: GemmParameters) -> str | None:
    if (reason := _product(spec)) is not None:
        return reason
    assert isinstance(spec, GemmSpec)
    if p.tile_m % p.thread_m or p.tile_n % p.thread_n:
        return "a tile is whole threads"
    shared = 4 * p.tile_k * (p.tile_m + 1 + len(spec.parts) * (p.tile_n + 1))
    if shared > _STATIC_SHARED:
        return f"{shared} bytes of shared memory; {_STATIC_SHARED} can be static"
    return _block(p.tile_m // p.thread_m * (p.tile_n // p.thread_n))


def _tensor_gemm(spec: Spec, p: TensorGemmParameters, target: Target, arch: str, dims: _Dims) -> str | None:
    if (reason := _product(spec)) is not None:
        return reason
    assert isinstance(spec, GemmSpec)
    if target is not Target.CUDA:
        return "tensor cores are a GPU's"
    if spec.dtype not in (DType.BFLOAT16, DType.FLOAT16, DType.T):
        return f"{spec.dtype.value} goes to the CUDA cores"
    if multiple_of(spec.k, 8, dims) is False:
        return "k is no multiple of 8: rows do not start on 16 bytes"
    if p.tile_m not in (0, 8, 16, 32, 64) or p.tile_k not in (64, 128) or p.tile_n % (16 * p.warps) or p.tile_n < 16:
        return "tile_m is 0, 8, 16, 32 or 64, tile_k 64 or 128, and a warp has whole tiles of 16 rows"
    if not 2 <= p.stages <= 8:
        return f"{p.stages} stages; 2 to 8"
    capability = assumed_cuda_device(arch).capability
    if p.split != 1 and (p.split not in (2, 4, 8) or capability < 90):
        return f"a contraction split by {p.split}: clusters are of 2, 4 or 8 blocks, from sm_90 on"
    tile_m = p.tile_m or min(64, max(8, value(spec.m, dims) or 64))
    sums = len(spec.parts) * p.tile_n // p.warps * tile_m // 32
    if sums > 128:
        return f"{sums} sums a thread; 128 fit the registers"
    if p.walk < 0 or p.walk > 8:
        return f"walk = {p.walk}; 0 to 8 blocks a multiprocessor"
    shared = p.stages * (len(spec.parts) * p.tile_n + tile_m) * p.tile_k * 2
    if p.walk and (k := value(spec.k, dims)) is not None:
        tiles = (k + p.tile_k - 1) // p.tile_k
        slice_ = (tiles + p.split - 1) // p.split * p.tile_k * 2 * tile_m
        sums = 2 * len(spec.parts) * tile_m * (p.tile_n + PAD) * 4
        shared = sums + slice_ + p.stages * len(spec.parts) * p.tile_n * p.tile_k * 2
    most = assumed_cuda_device(arch).shared_bytes
    if shared > most:
        return f"{shared} bytes of shared memory a block; {arch} has {most}"
    return _block(32 * p.warps)


def _block(threads: int) -> str | None:
    if threads % 32 or not 32 <= threads <= 1024:
        return f"a block of {threads} threads; whole warps, 1024 threads at most"
    return None
