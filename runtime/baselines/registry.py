"""Baselines by name. Nothing is imported before a baseline is prepared: most of its libraries are optional."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from kb.contract import Contract
from kb.dtype import DType, Target
from runtime.errors import MissingToolError, RuntimeFailure
from runtime.programs import find_program

Prepare = Callable[
    [Mapping[str, int], Mapping[str, torch.Tensor | None], Mapping[str, float]],
    Callable[[], None],
]


class UnsupportedShapeError(RuntimeFailure):
    """A baseline's library has no kernel for these dims or this storage type. The message says which."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way a library computes a contract.

    ``requires`` are the distributions it needs besides torch; ``module`` holds its IMPLEMENTATIONS by contract id.
    """

    contract_id: str
    name: str
    targets: tuple[Target, ...]
    module: str
    requires: tuple[str, ...] = ()

    def missing(self, target: Target) -> str | None:
        """Why it cannot run here on ``target``; None when it can."""
        if target not in self.targets:
            return f"{self.name} has no {target} implementation"
        for name in self.requires:
            if importlib.util.find_spec(name) is None:
                return f"{self.name} needs the package '{name}': pip install {_PACKAGES.get(name, name)}"
        if target is Target.CUDA and not torch.cuda.is_available():
            return f"{self.name} needs an NVIDIA GPU"
        return None

    def libraries(self) -> dict[str, str]:
        """Versions of what computes it, for the record."""
        versions = {"torch": str(torch.__version__)}
        if torch.version.cuda is not None:
            versions["cuda"] = torch.version.cuda
        for name in self.requires:
            versions[name] = importlib.metadata.version(_PACKAGES.get(name, name))
        return versions

    def prepare(
        self,
        contract: Contract,
        dims: Mapping[str, int],
        storage: DType,
        tensors: Mapping[str, torch.Tensor | None],
        scalars: Mapping[str, float],
    ) -> Callable[[], None]:
        """A call without arguments that computes the contract over ``tensors``, in place, on the current stream.

        ``dims`` holds static, flag and runtime dims; workload dims may be there and only bound work. ``tensors`` holds
        every tensor, outputs included. Scratch memory is allocated here, so that the call can be captured in a CUDA
        graph; every call reads the tensors as they are then. Calls that share scratch memory (calls of one baseline do)
        must not run on two streams at once.
        Raises MissingToolError without the library, UnsupportedShapeError when it has no kernel for the dims, and
        ValueError for a tensor of another type, shape or place in memory than the contract says.
        """
        for name in self.requires:
            if importlib.util.find_spec(name) is None:
                raise MissingToolError(
                    f"{self.name} needs the package '{name}': pip install {_PACKAGES.get(name, name)}"
                )
        _check(contract, dims, storage, tensors)
        implementations: Mapping[str, Prepare] = importlib.import_module(self.module).IMPLEMENTATIONS
        return implementations[self.contract_id](dims, tensors, scalars)


def get_baseline(contract_id: str, name: str) -> Baseline:
    """The baseline ``name`` of a contract. Raises KeyError when there is none."""
    targets, module, requires = _LIBRARIES.get(name, ((), "", ()))
    if name == f"triton_{contract_id}" and contract_id in _TRITON:
        targets, module, requires = (Target.CUDA,), f"{__package__}.triton_kernels.{_TRITON[contract_id]}", ("triton",)
    if name == FRAMEWORK and find_program(contract_id) is not None:
        targets, module, requires = _BOTH, f"{__package__}.framework", ()
    if not module or contract_id not in _ONLY.get(name, (contract_id,)):
        raise KeyError(f"{contract_id} has no baseline called '{name}'")
    return Baseline(contract_id, name, targets, module, requires)


def available_baselines(contract: Contract, target: Target) -> list[Baseline]:
    """The contract's baselines that can run here on ``target``, in the contract's order."""
    named = [get_baseline(contract.id, name) for name in contract.baselines.get(target, ())]
    return [baseline for baseline in named if baseline.missing(target) is None]


# The baseline of contracts that are stated by a program (runtime.programs).
FRAMEWORK = "framework"

_BOTH = (Target.CUDA, Target.CPU)
_LIBRARIES: dict[str, tuple[tuple[Target, ...], str, tuple[str, ...]]] = {
    "torch_eager": (_BOTH, f"{__package__}.torch_eager", ()),
    "torch_sdpa": (_BOTH, f"{__package__}.torch_sdpa", ()),
    "torch_compiled": ((Target.CUDA,), f"{__package__}.torch_compiled", ("triton",)),
    "flashinfer": ((Target.CUDA,), f"{__package__}.flashinfer_attention", ("flashinfer",)),
}
_ATTENTION = ("paged_decode_attention", "encoder_attention")
_ONLY: dict[str, tuple[str, ...]] = {
    "torch_eager": (
        "residual_rmsnorm",
        "rope",
        "kv_append",
        "attention_prelude",
        "gated_mlp_up",
        "gated_mlp_down",
        "o_proj_residual_rmsnorm",
        "lm_head_argmax",
        "encoder_qkv",
        "encoder_mlp",
    ),
    "torch_sdpa": _ATTENTION,
    "torch_compiled": ("residual_rmsnorm", "rope", "encoder_qkv", "encoder_mlp"),
    "flashinfer": ("paged_decode_attention",),
}
# Contract id -> module of runtime.baselines.triton_kernels.
_TRITON: dict[str, str] = {
    "residual_rmsnorm": "norm",
    "rope": "rotary",
    "kv_append": "cache",
    "attention_prelude": "prelude",
    "paged_decode_attention": "paged_attention",
    "gated_mlp_up": "gated_mlp",
    "gated_mlp_down": "gated_mlp",
    "o_proj_residual_rmsnorm": "output_projection",
    "lm_head_argmax": "vocabulary",
    "encoder_qkv": "encoder",
}
# Import name -> name to install, where they differ.
_PACKAGES = {"flashinfer": "flashinfer-python"}


def _check(
    contract: Contract, dims: Mapping[str, int], storage: DType, tensors: Mapping[str, torch.Tensor | None]
) -> None:
    for spec in contract.tensors:
        tensor = tensors.get(spec.name)
        if not contract.is_present(spec, dims):
            continue
        if tensor is None:
            raise ValueError(f"{contract.id}: tensor '{spec.name}' is needed at these dims and was not given")
        shape, dtype = contract.shape_of(spec, dims), spec.dtype.bind(storage)
        if tuple(tensor.shape) != shape or str(tensor.dtype) != f"torch.{dtype}" or not tensor.is_contiguous():
            kind = "" if tensor.is_contiguous() else ", not contiguous"
            raise ValueError(
                f"{contract.id}: '{spec.name}' is {tensor.dtype} {list(tensor.shape)}{kind}; "
                f"torch.{dtype} {list(shape)}, contiguous, is needed"
            )
