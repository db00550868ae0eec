"""A region's kernel in place of its operators: the graph's values in, the graph's values out.

The kernel was judged at the region's sizes and layouts. What arrives is compared with them at every call; anything
else, and any failure, is computed by the region's own operators instead, with a warning and a count.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from generator.ir import Graph
from generator.regions import RegionContract
from kb.candidate import Candidate
from kb.dtype import Target
from kb.expr import Expr, parse
from runtime.binding import make_workspace
from runtime.compile_cache import CompileCache
from runtime.kernel import Compiled, compile_candidate
from runtime.launch_cpu import CpuModule
from runtime.launch_cuda import CudaModule
from runtime.programs.interpret import run


class UnexpectedInputError(Exception):
    """A value that arrives is not as it was captured."""


@dataclass(slots=True)
class Fallbacks:
    """How often the framework computed what a kernel was chosen for, and the first reason, by region."""

    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, reason: str) -> None:
        """Count one; the first at each place is warned of."""
        self.counts[where] = self.counts.get(where, 0) + 1
        if where not in self.reasons:
            self.reasons[where] = reason
            warnings.warn(f"{where} falls back to the framework ({reason})", stacklevel=3)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What a value must be."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    align: int


@dataclass(frozen=True, slots=True)
class _At:
    """The kernel at one set of dims."""

    dims: Mapping[str, int]
    module: CpuModule | CudaModule
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    sizes: tuple[ctypes.c_int32, ...]
    workspace: torch.Tensor | None


class BoundRegion(torch.nn.Module):
    """One region of the captured graph, run by a kernel. ``forward`` takes ``inputs`` and returns ``outputs``."""

    def __init__(
        self,
        name: str,
        contract: RegionContract,
        graph: Graph,
        candidate: Candidate,
        fallbacks: Fallbacks,
        *,
        cache: CompileCache | None = None,
    ) -> None:
        super().__init__()
        program = contract.program
        self.name = name
        self.inputs = tuple(contract.tensors[i.tensor] for i in program.inputs)
        self.outputs = tuple(contract.tensors[o.tensor] for o in program.outputs)
        self._contract = contract
        self._graph = graph
        self._candidate = candidate
        self._fallbacks = fallbacks
        self._cache = cache or CompileCache()
        self._symbols = _symbol_places(contract)
        self._known: dict[tuple[int, ...], _At] = {}
        self._broken = ""

    def prepare(self) -> None:
        """Load the kernel at the example's dims now, not at the first call. Raises runtime.errors.RuntimeFailure."""
        self._at(tuple(self._contract.example[s] for s in self._symbols))

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The region's outputs."""
        if not self._broken:
            try:
                return self._launch(values)
            except UnexpectedInputError as error:
                self._fallbacks.add(self.name, str(error))
            except Exception as error:  # whatever fails, the module's result must come
                self._broken = f"{type(error).__name__}: {error}"
        if self._broken:
            self._fallbacks.add(self.name, self._broken)
        return self._framework(values)

    def _launch(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        at = self._at(tuple([values[i].shape[axis] for i, axis in self._symbols.values()]))
        pointers = []
        for value, wanted in zip(values, at.inputs, strict=True):
            pointer = value.data_ptr()
            if (
                value.shape != wanted.shape
                or value.dtype is not wanted.dtype
                or pointer % wanted.align
                or (value.stride() != wanted.strides and not _lies_alike(value, wanted))
            ):
                raise UnexpectedInputError(_difference(value, wanted))
            pointers.append(ctypes.c_void_p(pointer))
        device = values[0].device
        made = tuple([torch.empty_strided(o.shape, o.strides, dtype=o.dtype, device=device) for o in at.outputs])
        pointers += [ctypes.c_void_p(tensor.data_ptr()) for tensor in made]
        scratch = ctypes.c_void_p(0 if at.workspace is None else at.workspace.data_ptr())
        at.module.bind((*pointers, *at.sizes, scratch), {}, at.workspace)()
        return made

    def _framework(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        dims = {s: int(values[i].shape[axis]) for s, (i, axis) in self._symbols.items()}
        named = {i.value: value for i, value in zip(self._contract.program.inputs, values, strict=True)}
        return tuple(run(self._contract.program, dims, named))

    def _at(self, sizes: tuple[int, ...]) -> _At:
        if (found := self._known.get(sizes)) is None:
            found = self._known[sizes] = self._load(dict(zip(self._symbols, sizes, strict=True)))
        return found

    def _load(self, dims: dict[str, int]) -> _At:
        region, contract = self._contract, self._contract.contract
        compiled = compile_candidate(self._candidate, contract, dims, region.storage, cache=self._cache)
        zeroed = self._candidate.plan.workspace.zeroed == "once"
        return _At(
            dims=dims,
            module=_module(compiled),
            inputs=tuple(self._tensor(i.tensor, dims) for i in region.program.inputs),
            outputs=tuple(self._tensor(o.tensor, dims) for o in region.program.outputs),
            sizes=tuple(ctypes.c_int32(dims[name]) for name in contract.dims),
            workspace=make_workspace(compiled.workspace_bytes, zeroed=zeroed, device=self._candidate.target.value),
        )

    def _tensor(self, tensor: str, dims: Mapping[str, int]) -> _Tensor:
        value = self._graph.values[self._contract.tensors[tensor]]
        return _Tensor(
            shape=tuple(parse(str(e)).evaluate_int(dims) for e in value.shape),
            strides=tuple(parse(str(e)).evaluate_int(dims) for e in value.strides),
            dtype=getattr(torch, value.dtype),
            align=self._contract.contract.tensor(tensor).align,
        )


def _module(compiled: Compiled) -> CpuModule | CudaModule:
    if compiled.candidate.target is Target.CUDA:
        return CudaModule(compiled.image, compiled.launches, compiled.device)
    return CpuModule(compiled.image, compiled.launches, compiled.device.num_sms)


def _symbol_places(contract: RegionContract) -> dict[str, tuple[int, int]]:
    """For every runtime dim, an input and the axis of it that has its size. Raises UnexpectedInputError without one."""
    places: dict[str, tuple[int, int]] = {}
    for number, given in enumerate(contract.program.inputs):
        for axis, extent in enumerate(given.layout.shape):
            if _is_name(extent):
                places.setdefault(extent.text, (number, axis))
    missing = [name for name in contract.contract.dims if name not in places]
    if missing:
        raise UnexpectedInputError(f"no input tells the size '{missing[0]}'")
    return {name: places[name] for name in contract.contract.dims}


def _is_name(extent: Expr) -> bool:
    return extent.names == {extent.text}


def _lies_alike(value: torch.Tensor, wanted: _Tensor) -> bool:
    """Whether the strides are the same where they matter: those of dims of one element do not."""
    pairs = zip(value.shape, value.stride(), wanted.strides, strict=True)
    return all(size == 1 or a == b for size, a, b in pairs)


def _difference(value: torch.Tensor, wanted: _Tensor) -> str:
    if value.shape != wanted.shape or value.dtype is not wanted.dtype:
        return f"{value.dtype} {list(value.shape)} where {wanted.dtype} {list(wanted.shape)} was captured"
    if value.data_ptr() % wanted.align:
        return f"an address that is no multiple of {wanted.align}"
    return f"strides {list(value.stride())} where {list(wanted.strides)} were captured"


__all__ = ["BoundRegion", "Fallbacks", "UnexpectedInputError"]
