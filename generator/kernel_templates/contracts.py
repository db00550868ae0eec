"""Template kernels for the project's own contracts: ordinary candidates, judged, stored and chosen like any other.

A candidate serves every shape and storage type of its contract. Where few and many rows want different kernels it
holds both, and its plan says which is launched when; the sizes of a launch follow from the dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from generator.kernel_templates import contract_specs as specs
from generator.kernel_templates.cpu import gemm as cpu_gemm
from generator.kernel_templates.cuda import argmax
from generator.kernel_templates.legality import legal
from generator.kernel_templates.parameters import (
    ElementwiseParameters,
    GemvParameters,
    Parameters,
    RowParameters,
    TensorGemmParameters,
)
from generator.kernel_templates.program import indented
from generator.kernel_templates.specs import GemmSpec, Spec
from generator.kernel_templates.stage import Stage, assemble
from generator.kernel_templates.templates import family, library, stage
from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import Target

# From so many rows of the step on, tensor cores take over from the GEMV.
TENSOR_ROWS = 5


@dataclass(frozen=True, slots=True)
class TemplateCandidate:
    """A candidate, where it comes from, and a line for people. ``parameters``: one a launch that computes something."""

    candidate: Candidate
    family: str
    parameters: tuple[Parameters, ...]
    description: str


def template_candidates(contract: Contract, target: Target, arch: str) -> list[TemplateCandidate]:
    """Candidates for ``contract``, the most promising first; empty where no template fits it."""
    build = _BUILDERS.get(contract.id)
    found = {t.candidate.digest: t for t in build(contract, target, arch)} if build else {}
    return list(found.values())


# --- products --------------------------------------------------------------------------------------------------------

# The first of each is the best over the shapes of six model families on an H200; see bench/results.
_GEMV = (
    GemvParameters(rows=1, split=0, warps=8, tokens=4, unroll=4),
    GemvParameters(rows=1, split=2, warps=4, tokens=4, unroll=4),
    GemvParameters(rows=2, split=4, warps=8, tokens=4, unroll=4),
    GemvParameters(rows=1, split=1, warps=8, tokens=4, unroll=4),
)
# Many rows of the weight fill the device with a block a tile; few of them need the contraction split. The first of each
# is the best measured at 8 rows of the step.
_MANY_OUTPUTS = (
    TensorGemmParameters(0, 32, 128, 4, 2, 1),
    TensorGemmParameters(0, 64, 64, 4, 4, 1),
    TensorGemmParameters(0, 32, 64, 4, 2, 1),
    TensorGemmParameters(0, 64, 64, 4, 4, 4),
    TensorGemmParameters(0, 128, 64, 4, 4, 2),
    TensorGemmParameters(0, 64, 64, 4, 4, 4, walk=1),
)
_FEW_OUTPUTS = (
    TensorGemmParameters(0, 64, 64, 6, 4, 8),
    TensorGemmParameters(0, 32, 128, 4, 2, 4),
    TensorGemmParameters(0, 128, 64, 4, 8, 8),
    TensorGemmParameters(0, 32, 64, 4, 2, 8),
    TensorGemmParameters(0, 64, 64, 4, 4, 4),
    TensorGemmParameters(0, 64, 64, 4, 4, 1),
)
_CPU_BLOCKS = (64, 16)


def _pairs(spec: GemmSpec, target: Target, arch: str) -> Iterator[tuple[GemvParameters, TensorGemmParameters]]:
    """Every tensor-core choice with the best GEMV, then every other GEMV with the first tensor-core choice."""
    choices = _FEW_OUTPUTS if spec in (specs.GATED_MLP_DOWN, specs.O_PROJ) else _MANY_OUTPUTS
    tensor = [p for p in choices if legal(spec, p, target, arch) is None]
    gemv = [p for p in _GEMV if legal(spec, p, target, arch) is None]
    yield from ((gemv[0], p) for p in tensor)
    yield from ((p, tensor[0]) for p in gemv[1:])


def _few_and_many(
    contract: Contract, spec: GemmSpec, gemv: GemvParameters, tensor: TensorGemmParameters, after: Sequence[Stage] = ()
) -> TemplateCandidate:
    """The GEMV below TENSOR_ROWS rows of the step, tensor cores from there on, and what follows either."""
    stages = (
        stage(spec, gemv, contract, Target.CUDA, "few_rows", f"num_tokens < {TENSOR_ROWS}"),
        stage(spec, tensor, contract, Target.CUDA, "many_rows", f"num_tokens >= {TENSOR_ROWS}"),
        *after,
    )
    return _made(contract, Target.CUDA, stages, (gemv, tensor))


def _projection(
    spec: GemmSpec, after: Spec | None = None
) -> Callable[[Contract, Target, str], Iterator[TemplateCandidate]]:
    """A product with its epilogue, and row work after it where the contract ends in a norm."""

    def build(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
        last: list[Stage] = []
        if after is not None:
            last = [stage(after, RowParameters(8, 256, 1, True), contract, target, "normalise")]
        if target is Target.CPU:
            for block in _CPU_BLOCKS:
                gemv = GemvParameters(rows=block)
                yield _made(contract, target, (stage(spec, gemv, contract, target, "project"), *last), (gemv,))
            return
        for few, many in _pairs(spec, target, arch):
            yield _few_and_many(contract, spec, few, many, last)

    return build


def _lm_head(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    spec = specs.LM_HEAD
    to = argmax.Argmax("out_ids", "out_max")
    if target is Target.CPU:
        found, workspace = cpu_gemm.argmax_stage(spec, to.ids, to.largest, "scan")
        yield _made(contract, target, (found,), (GemvParameters(),), workspace)
        return
    for few, many in _pairs(spec, target, arch):
        if many.split != 1 or many.walk:
            continue
        below, above = f"num_tokens < {TENSOR_ROWS}", f"num_tokens >= {TENSOR_ROWS}"
        scan, merge, bytes_few = argmax.gemv_argmax(spec, to, few, "few_rows", below)
        scan_many, merge_many, bytes_many = argmax.tensor_argmax(spec, to, many, "many_rows", above)
        stages = (scan, merge, scan_many, merge_many)
        yield _made(contract, target, stages, (few, many), f"max({bytes_few}, {bytes_many})")


# --- rows, rotation and caches ---------------------------------------------------------------------------------------


def _residual_rmsnorm(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    choices = [RowParameters(1, 32, 1, False)]
    if target is Target.CUDA:
        choices = [RowParameters(8, group, 1, True) for group in (512, 256, 1024, 128)]
    for p in choices:
        if legal(specs.RESIDUAL_RMSNORM, p, target, arch) is None:
            stages = (
                stage(specs.RESIDUAL_RMSNORM, p, contract, target, "add_and_normalise", "has_residual == 1"),
                stage(specs.PLAIN_RMSNORM, p, contract, target, "normalise", "has_residual == 0"),
            )
            yield _made(contract, target, stages, (p,))


def _rope(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    del arch
    for block in (128, 256, 64) if target is Target.CUDA else (256,):
        yield _made(contract, target, (specs.rope_stage(target, block),), (ElementwiseParameters(1, block),))


def _kv_append(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    del arch
    for block in (128, 256, 64) if target is Target.CUDA else (256,):
        yield _made(contract, target, (specs.kv_append_stage(target, block),), (ElementwiseParameters(8, block),))


# --- encoders --------------------------------------------------------------------------------------------------------


def _encoder_qkv(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    for few, many, entries in _encoder_choices(specs.ENCODER_QKV, target, arch):
        stages = (
            _normalise(contract, target),
            *entries(contract, specs.ENCODER_QKV, "project", specs.INPUT_ROWS),
        )
        yield _made(contract, target, stages, _used(few, many), specs.ENCODER_QKV_BYTES)


def _encoder_mlp(contract: Contract, target: Target, arch: str) -> Iterator[TemplateCandidate]:
    for few, many, entries in _encoder_choices(specs.ENCODER_UP, target, arch):
        stages = (
            _normalise(contract, target),
            *entries(contract, specs.ENCODER_UP, "up", specs.INPUT_ROWS, specs.ACTIVATED_OUT),
            *entries(contract, specs.ENCODER_DOWN, "down", specs.ACTIVATED_IN),
        )
        yield _made(contract, target, stages, _used(few, many), specs.ENCODER_MLP_BYTES)


class _Entries(Protocol):
    def __call__(self, contract: Contract, spec: GemmSpec, name: str, *before: str) -> Iterator[Stage]: ...


def _encoder_choices(
    spec: GemmSpec, target: Target, arch: str
) -> Iterator[tuple[GemvParameters, TensorGemmParameters | None, _Entries]]:
    """The parameters, and what makes the launches of a product with them; ``before``: lines the entry starts with."""
    pairs: Sequence[tuple[GemvParameters, TensorGemmParameters | None]]
    if target is Target.CPU:
        pairs = [(GemvParameters(rows=block), None) for block in _CPU_BLOCKS]
    else:
        pairs = list(_pairs(spec, target, arch))
    for few, many in pairs:

        def entries(
            contract: Contract,
            spec: GemmSpec,
            name: str,
            *before: str,
            few: GemvParameters = few,
            many: TensorGemmParameters | None = many,
        ) -> Iterator[Stage]:
            if many is None:
                yield _after(before, stage(spec, few, contract, target, name))
                return
            below, above = f"num_tokens < {TENSOR_ROWS}", f"num_tokens >= {TENSOR_ROWS}"
            yield _after(before, stage(spec, few, contract, target, f"{name}_few", below))
            yield _after(before, stage(spec, many, contract, target, f"{name}_many", above))

        yield few, many, entries


def _normalise(contract: Contract, target: Target) -> Stage:
    made = stage(specs.LAYER_NORM, RowParameters(8, 256, 1, True), contract, target, "normalise", "has_pre_norm == 1")
    return _after((specs.NORMED_ROWS,), made)


def _after(lines: Sequence[str], made: Stage) -> Stage:
    """The stage with ``lines`` in front of its body."""
    return replace(made, body=indented(lines, 1) + "\n" + made.body)


def _used(few: GemvParameters, many: TensorGemmParameters | None) -> tuple[Parameters, ...]:
    return (few,) if many is None else (few, many)


def _made(
    contract: Contract,
    target: Target,
    stages: Sequence[Stage],
    parameters: tuple[Parameters, ...],
    workspace: str = "0",
) -> TemplateCandidate:
    names = " + ".join(dict.fromkeys(family(p) for p in parameters))
    candidate = assemble(
        contract,
        target,
        stages,
        library(target),
        idea=(f"{names}, in {len(stages)} launches at most; which of them run follows from the dims.",),
        bound="the read of the weights for few rows." if "gem" in names else "latency for a step, memory beyond.",
        workspace=workspace,
    )
    return TemplateCandidate(candidate, names, parameters, "; ".join(str(p) for p in parameters))


_BUILDERS: dict[str, Callable[[Contract, Target, str], Iterator[TemplateCandidate]]] = {
    "gated_mlp_up": _projection(specs.GATED_MLP_UP),
    "gated_mlp_down": _projection(specs.GATED_MLP_DOWN),
    "o_proj_residual_rmsnorm": _projection(specs.O_PROJ, specs.O_PROJ_NORM),
    "lm_head_argmax": _lm_head,
    "residual_rmsnorm": _residual_rmsnorm,
    "rope": _rope,
    "kv_append": _kv_append,
    "encoder_qkv": _encoder_qkv,
    "encoder_mlp": _encoder_mlp,
}
