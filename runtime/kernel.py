"""From a candidate to something that can be called: compile, load, bind, launch.

    kernel = load_kernel(candidate, contract, dims, DType.BFLOAT16)
    call = kernel.bind({"x": x, "weight": weight, "out": out}, {"eps": 1e-6})
    call()

Loading compiles (or finds the image in the cache), resolves the launch plan at these dims and checks it against the
device. Binding checks the arguments once and packs them. The call itself launches and does nothing else: it allocates
nothing, reads nothing back, and may be captured in a CUDA graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kb.candidate import Candidate, ResolvedLaunch, resolve
from kb.contract import Contract, DimKind
from kb.dtype import DType, Target
from kb.expr import ExprError
from kb.signature import prelude
from runtime.binding import Signature, check_workspace, make_workspace
from runtime.compile_cache import CompileCache
from runtime.compile_cpu import SOURCE_NAME as CPU_SOURCE
from runtime.compile_cpu import CompilerLimits, compile_cpu
from runtime.compile_cuda import SOURCE_NAME as CUDA_SOURCE
from runtime.compile_cuda import compile_cuda
from runtime.device import DeviceInfo, device_for
from runtime.errors import LoadError
from runtime.image import EntryResources, Image
from runtime.launch_cpu import CpuModule
from runtime.launch_cuda import FIRST_CLUSTER_CAPABILITY, CudaModule, check_launch
from runtime.older import without_dependent_launch

if TYPE_CHECKING:
    import torch

# Every intrinsic of x86 and its types begin with an underscore; those of Arm do not, and their header is small.
_INTRINSICS = "#include <immintrin.h>\n"
_LIKE_AN_INTRINSIC = re.compile(r"\b_(?!_restrict)")


class BoundCall(Protocol):
    """A kernel with its arguments. ``tensors`` and ``workspace`` are kept alive by it."""

    tensors: dict[str, torch.Tensor | None]
    workspace: torch.Tensor | None

    def __call__(self) -> None:
        """Launch on torch's current stream (``cuda``), or run to the end (``cpu``). Raises LaunchError."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A candidate compiled for one device at one set of dims, its launches resolved. Holds nothing of the device."""

    candidate: Candidate
    signature: Signature
    device: DeviceInfo
    image: Image
    launches: tuple[ResolvedLaunch, ...]
    workspace_bytes: int


class Kernel:
    """A loaded candidate. Made by load_kernel."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self._module: CudaModule | CpuModule
        if compiled.signature.target is Target.CUDA:
            self._module = CudaModule(compiled.image, compiled.launches, compiled.device)
        else:
            self._module = CpuModule(compiled.image, compiled.launches, compiled.device.num_sms)

    @property
    def device(self) -> DeviceInfo:
        """What it runs on."""
        return self.compiled.device

    @property
    def image(self) -> Image:
        """The compiled image, with compiler, options and warnings."""
        return self.compiled.image

    @property
    def launches(self) -> tuple[ResolvedLaunch, ...]:
        """The launches of one call, in order."""
        return self.compiled.launches

    @property
    def resources(self) -> Mapping[str, EntryResources]:
        """Registers, spills and shared memory by entry; empty for ``cpu``."""
        return self._module.resources if isinstance(self._module, CudaModule) else self.compiled.image.resources

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory a call needs."""
        return self.compiled.workspace_bytes

    @property
    def workspace_zeroed(self) -> bool:
        """True when the workspace must be zero before the first call, and is left zero by every call."""
        return self.compiled.candidate.plan.workspace.zeroed == "once"

    def new_workspace(self) -> torch.Tensor | None:
        """A workspace as the plan wants it (uint8, aligned, zeroed if asked); None when none is needed."""
        target = self.compiled.signature.target.value
        device = f"{target}:{self.device.index}" if self.device.index is not None else target
        return make_workspace(self.workspace_bytes, zeroed=self.workspace_zeroed, device=device)

    def bind(
        self,
        tensors: Mapping[str, torch.Tensor | None],
        scalars: Mapping[str, float],
        *,
        workspace: torch.Tensor | None = None,
    ) -> BoundCall:
        """Check the arguments and pack them.

        ``tensors`` holds every tensor of the contract by name; one that is absent at these dims is None or left out.
        ``workspace`` shares scratch memory between calls that never run at the same time; it must be zero where
        ``workspace_zeroed`` (and only kernels that leave it so may share it). Raises LaunchError.
        """
        signature = self.compiled.signature
        signature.check_tensors(tensors)
        signature.check_scalars(scalars)
        if workspace is None:
            workspace = self.new_workspace()
        check_workspace(workspace, self.workspace_bytes, signature.target)
        return self._module.bind(signature.pack(tensors, scalars, workspace), tensors, workspace)


def load_kernel(
    candidate: Candidate,
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    *,
    cache: CompileCache | None = None,
    device: DeviceInfo | None = None,
) -> Kernel:
    """Compile ``candidate`` and load it on this machine's device.

    ``dims`` holds every static, flag and runtime dim; workload dims are ignored. Raises CompileError with the
    candidate's own lines, LoadError, or MissingToolError.
    """
    return Kernel(compile_candidate(candidate, contract, dims, storage, cache=cache, device=device))


def compile_candidate(
    candidate: Candidate,
    contract: Contract,
    dims: Mapping[str, int],
    storage: DType,
    *,
    cache: CompileCache | None = None,
    device: DeviceInfo | None = None,
    limits: CompilerLimits | None = None,
) -> Compiled:
    """Compile without loading: for ``cuda`` this needs no GPU when ``device`` is assumed_cuda_device(arch).

    Raises as load_kernel, for everything that can be known without the device.
    """
    if candidate.contract != contract.id:
        raise LoadError(f"the candidate is for contract {candidate.contract}, not {contract.id}")
    device = device or device_for(candidate.target)
    if device.target is not candidate.target:
        raise LoadError(f"the candidate is for {candidate.target.value}, the device is {device.target.value}")
    known = kernel_dims(contract, dims)
    launches, workspace_bytes = resolve_plan(candidate, known, device)
    cache = cache or CompileCache()
    text = full_source(candidate, contract, known, storage, device)
    if candidate.target is Target.CUDA:
        image = compile_cuda(text, device.arch, cache)
        for launch in launches:
            needs = image.resources.get(launch.entry)
            check_launch(launch, device, needs.shared_bytes if needs else 0)
            if image.resources and needs is None:
                found = ", ".join(sorted(image.resources))
                raise LoadError(f"the source defines no kernel '{launch.entry}' with extern \"C\" (it has {found})")
    else:
        image = compile_cpu(text, cache, limits)
    signature = Signature(contract, known, storage, candidate.target)
    return Compiled(candidate, signature, device, image, launches, workspace_bytes)


def full_source(
    candidate: Candidate, contract: Contract, dims: Mapping[str, int], storage: DType, device: DeviceInfo
) -> str:
    """What the compiler reads: the contract's prelude, then the candidate with its lines counted from 1.

    Where the device has no dependent launch, its device halves are left out. The headers of vector intrinsics take
    longer to read than the rest of a compilation, so a source without a name like theirs does without them.
    """
    name = CUDA_SOURCE if candidate.target is Target.CUDA else CPU_SOURCE
    head = prelude(contract, candidate.target, dims, storage, device.symbols)
    if candidate.target is Target.CPU and not _LIKE_AN_INTRINSIC.search(candidate.source):
        head = head.replace(_INTRINSICS, "")
    source = candidate.source.rstrip()
    if candidate.target is Target.CUDA and device.capability < FIRST_CLUSTER_CAPABILITY:
        source = without_dependent_launch(source)
    return f'{head}#line 1 "{name}"\n{source}\n'


def resolve_plan(
    candidate: Candidate, dims: Mapping[str, int], device: DeviceInfo
) -> tuple[tuple[ResolvedLaunch, ...], int]:
    """Launches that apply and the workspace's bytes. Raises LoadError where the plan makes no sense at these dims.

    Besides dims and device symbols its expressions may read ``compute_capability`` (90 for sm_90, 0 on ``cpu``):
    clusters and the like are launched in another way where there are none.
    """
    try:
        return resolve(candidate.plan, {**dims, **device.symbols, "compute_capability": device.capability})
    except ExprError as error:
        raise LoadError(f"launch plan: {error}") from error


def kernel_dims(contract: Contract, dims: Mapping[str, int]) -> dict[str, int]:
    """The static, flag and runtime dims among ``dims``, in declared order.

    Raises LoadError when one is missing or outside its range, or a constraint over them does not hold.
    """
    known = {}
    for name in contract.dims_of(DimKind.STATIC, DimKind.FLAG, DimKind.RUNTIME):
        if name not in dims:
            raise LoadError(f"{contract.id}: dim '{name}' has no value")
        dim, value = contract.dims[name], dims[name]
        low, high = (0, 1) if dim.kind is DimKind.FLAG else (dim.min, dim.max if dim.max is not None else 2**31 - 1)
        if not low <= value <= high:
            raise LoadError(f"{contract.id}: {name} = {value} is outside {low}..{high}")
        known[name] = value
    for constraint in contract.constraints:
        if constraint.names <= set(known) and not constraint.evaluate(known):
            raise LoadError(f"{contract.id}: constraint '{constraint}' does not hold")
    return known
