"""A region's kernel in place of its operators: the graph's values in, the graph's values out.

The kernel was judged at the region's sizes and layouts. What arrives is compared with them at every call; anything
else, and any failure, is computed by the region's own operators instead, with a warning and a count.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from generator.ir import Graph, ValueKind
from generator.regions import RegionContract
from kb.candidate import Candidate
from kb.dtype import Target
from kb.expr import Expr, parse
from runtime.binding import make_workspace
from runtime.compile_cache import CompileCache
from runtime.errors import RuntimeFailure
from runtime.kernel import Compiled, compile_candidate
from runtime.launch_cpu import CpuModule
from runtime.launch_cuda import CudaModule
from runtime.programs.interpret import run

Launch = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]


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
    """What a value must be. ``held``: the module holds it, so that the same object is the same tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    align: int
    held: bool


class BoundRegion:
    """One region of the captured graph, run by a kernel. Called with the values ``inputs``, it gives ``outputs``.

    From one thread at a time: calls share the kernel's workspace.
    """

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
        self._launches: dict[tuple[int, ...], Launch] = {}
        self._broken = ""

    def prepare(self) -> None:
        """Load the kernel at the example's dims now, not at the first call. Raises runtime.errors.RuntimeFailure."""
        self._launch_at(tuple(self._contract.example[s] for s in self._symbols))

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The region's outputs. Never raises where the region's own operators would not."""
        if not self._broken:
            try:
                sizes = tuple([values[i].shape[axis] for i, axis in self._symbols.values()]) if self._symbols else ()
                launch = self._launches.get(sizes) or self._launch_at(sizes)
                return launch(values)
            except RuntimeFailure as error:  # it will not compile or load the next time either
                self._broken = f"{type(error).__name__}: {error}"
            except Exception as error:  # whatever fails, the module's result must come
                self._fallbacks.add(self.name, str(error) or type(error).__name__)
                return self._framework(values)
        self._fallbacks.add(self.name, self._broken)
        return self._framework(values)

    def _framework(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        dims = {s: int(values[i].shape[axis]) for s, (i, axis) in self._symbols.items()}
        return run(self._contract.program, dims, values)

    def _launch_at(self, sizes: tuple[int, ...]) -> Launch:
        dims = dict(zip(self._symbols, sizes, strict=True))
        region, contract = self._contract, self._contract.contract
        compiled = compile_candidate(self._candidate, contract, dims, region.storage, cache=self._cache)
        zeroed = self._candidate.plan.workspace.zeroed == "once"
        target = self._candidate.target.value
        found = self._launches[sizes] = _launcher(
            compiled,
            [self._tensor(i.tensor, dims) for i in region.program.inputs],
            [self._tensor(o.tensor, dims) for o in region.program.outputs],
            [dims[name] for name in contract.dims],
            make_workspace(compiled.workspace_bytes, zeroed=zeroed, device=target),
        )
        return found

    def _tensor(self, tensor: str, dims: Mapping[str, int]) -> _Tensor:
        value = self._graph.values[self._contract.tensors[tensor]]
        return _Tensor(
            shape=tuple(parse(str(e)).evaluate_int(dims) for e in value.shape),
            strides=tuple(parse(str(e)).evaluate_int(dims) for e in value.strides),
            dtype=getattr(torch, value.dtype),
            align=self._contract.contract.tensor(tensor).align,
            held=value.kind is ValueKind.PARAMETER,
        )


def _launcher(
    compiled: Compiled,
    inputs: Sequence[_Tensor],
    outputs: Sequence[_Tensor],
    sizes: Sequence[int],
    workspace: torch.Tensor | None,
) -> Launch:
    """The call itself, everything that can be known before looked up once: it runs once a region and step."""
    enter = _entry(compiled, len(inputs) + len(outputs), sizes, workspace)
    wanted = [(t.shape, t.strides, t.dtype, t.align - 1, t.held, number) for number, t in enumerate(inputs)]
    made_of = [(t.shape, t.strides, t.dtype) for t in outputs]
    here = "is_cuda" if compiled.candidate.target is Target.CUDA else "is_cpu"
    seen: list[torch.Tensor | None] = [None] * len(inputs)
    known = [0] * len(inputs)
    empty = torch.empty_strided

    def launch(values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        pointers = []
        for value, (shape, strides, dtype, mask, held, number) in zip(values, wanted, strict=True):
            pointer = value.data_ptr()
            if not held or seen[number] is not value or known[number] != pointer:
                if value.shape != shape or value.dtype is not dtype or pointer & mask or not getattr(value, here):
                    raise UnexpectedInputError(_difference(value, inputs[number]))
                if value.stride() != strides and not _lies_alike(value, inputs[number]):
                    raise UnexpectedInputError(_difference(value, inputs[number]))
                seen[number], known[number] = value if held else None, pointer
            pointers.append(pointer)
        device = values[0].device
        made = tuple([empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in made_of])
        enter(*pointers, *[tensor.data_ptr() for tensor in made])
        return made

    return launch


def _entry(
    compiled: Compiled, tensors: int, sizes: Sequence[int], workspace: torch.Tensor | None
) -> Callable[..., None]:
    """The kernel as a function of the tensors' addresses."""
    scratch = 0 if workspace is None else workspace.data_ptr()
    if compiled.candidate.target is Target.CPU:
        module = CpuModule(compiled.image, compiled.launches, compiled.device.num_sms)
        types = [ctypes.c_void_p] * tensors + [ctypes.c_int32] * len(sizes) + [ctypes.c_void_p]
        call, tail = module.caller(types), (*sizes, scratch)

        def enter(*addresses: int, _kept: torch.Tensor | None = workspace) -> None:
            call(*addresses, *tail)

        return enter
    # A launch reads its arguments through pointers when it is issued, so one bound call serves all addresses.
    cells = [ctypes.c_void_p(0) for _ in range(tensors)]
    numbers = [ctypes.c_int32(size) for size in sizes]
    on_device = CudaModule(compiled.image, compiled.launches, compiled.device)
    bound = on_device.bind((*cells, *numbers, ctypes.c_void_p(scratch)), {}, workspace)

    def launch(*addresses: int) -> None:
        for cell, address in zip(cells, addresses, strict=True):
            cell.value = address
        bound()

    return launch


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
    if value.stride() == wanted.strides:
        return f"a tensor on {value.device}, where the kernel does not run"
    return f"strides {list(value.stride())} where {list(wanted.strides)} were captured"


__all__ = ["BoundRegion", "Fallbacks", "UnexpectedInputError"]
