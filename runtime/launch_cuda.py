"""Loading a cubin with cupy and launching it with cuda-bindings, on torch's current stream.

cupy loads the image into the context torch uses and answers for the function's attributes; the launch goes through
``cuLaunchKernelEx``, because clusters, cooperative grids and programmatic dependent launches are launch attributes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kb.candidate import ResolvedLaunch
from runtime.binding import CValue, addresses
from runtime.device import DeviceInfo
from runtime.errors import LaunchError, LoadError, MissingToolError
from runtime.image import EntryResources, Image

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'agentcompile[cuda]'"
STATIC_SHARED_BYTES = 48 << 10  # beyond this a function has to be asked first
PORTABLE_CLUSTER = 8
FIRST_CLUSTER_CAPABILITY = 90  # thread block clusters and programmatic dependent launch


def check_launch(launch: ResolvedLaunch, device: DeviceInfo, static_shared_bytes: int = 0) -> None:
    """Raises LoadError when ``device`` can never run ``launch``, whatever its function needs in registers."""
    blocks = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if blocks > 1:
        if device.capability < FIRST_CLUSTER_CAPABILITY:
            raise LoadError(f"{launch.entry}: clusters need sm_90 or newer; this is {device.arch}")
        if blocks > 2 * PORTABLE_CLUSTER:
            raise LoadError(f"{launch.entry}: a cluster of {blocks} blocks; 16 at most")
        for axis, grid, cluster in zip("xyz", launch.grid, launch.cluster, strict=True):
            if grid % cluster:
                raise LoadError(f"{launch.entry}: grid.{axis} = {grid} is not a multiple of cluster.{axis} = {cluster}")
    shared = launch.shared_bytes + static_shared_bytes
    if shared > device.shared_bytes:
        raise LoadError(
            f"{launch.entry}: {shared} bytes of shared memory a block; {device.arch} has {device.shared_bytes}"
        )


class CudaModule:
    """A loaded cubin with one configured function a launch.

    Raises LoadError when it cannot be loaded, lacks an entry, or a launch asks for more than the device has.
    """

    def __init__(self, image: Image, launches: Sequence[ResolvedLaunch], device: DeviceInfo) -> None:
        if device.index is None:
            raise LoadError(f"{device.name} is not there: an image for it compiles, but only a real device loads it")
        cupy = _cupy()
        self._device = device
        self._launches = tuple(launches)
        self.resources: dict[str, EntryResources] = dict(image.resources)
        with cupy.cuda.Device(device.index):
            module = cupy.RawModule(path=str(image.path))
            self._functions = [self._configure(module, launch) for launch in self._launches]
        self._module = module

    def bind(
        self, values: Sequence[CValue], tensors: Mapping[str, torch.Tensor | None], workspace: torch.Tensor | None
    ) -> CudaCall:
        """A call with ``values`` as its arguments; it keeps ``tensors`` and ``workspace`` alive."""
        steps = [
            (launch_config(launch, self._device), function, launch.entry)
            for launch, function in zip(self._launches, self._functions, strict=True)
        ]
        return CudaCall(steps, tuple(values), self._device.index or 0, tensors, workspace, self._module)

    def _configure(self, module: Any, launch: ResolvedLaunch) -> Any:
        driver = _driver()
        try:
            kernel = module.get_function(launch.entry)
            pointer = kernel.kernel.ptr
            registers, static = kernel.num_regs, kernel.shared_size_bytes
            threads, local = kernel.max_threads_per_block, kernel.local_size_bytes
        except Exception as error:  # cupy's driver error: wrong architecture, damaged image, missing entry
            raise LoadError(f"{launch.entry}: cannot be loaded: {error}") from error
        known = self.resources.get(launch.entry) or EntryResources(registers, static, stack_bytes=local)
        self.resources[launch.entry] = EntryResources(
            registers=registers,
            shared_bytes=static,
            stack_bytes=known.stack_bytes,
            spill_store_bytes=known.spill_store_bytes,
            spill_load_bytes=known.spill_load_bytes,
            barriers=known.barriers,
            max_threads=threads,
        )
        check_launch(launch, self._device, static)
        asked = launch.block[0] * launch.block[1] * launch.block[2]
        if asked > threads:
            raise LoadError(f"{launch.entry}: a block of {asked} threads; its {registers} registers allow {threads}")
        # One function may serve several kernels (cupy loads a path once), so the limit is only ever raised.
        if launch.shared_bytes > max(STATIC_SHARED_BYTES - static, kernel.max_dynamic_shared_size_bytes):
            kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        function = driver.CUfunction(pointer)
        if launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > PORTABLE_CLUSTER:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _require(
                driver.cuFuncSetAttribute(function, attribute, 1), f"{launch.entry}: cluster of more than 8 blocks"
            )
        if launch.cooperative:
            self._check_resident(function, launch)
        return function

    def _check_resident(self, function: Any, launch: ResolvedLaunch) -> None:
        """A cooperative grid must fit at once, or its first grid-wide barrier would wait for ever."""
        driver = _driver()
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        asked = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, launch.shared_bytes)
        _require(asked[:1], f"{launch.entry}: occupancy")
        room = int(asked[1]) * self._device.num_sms
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        if blocks > room:
            raise LoadError(f"{launch.entry}: a cooperative grid of {blocks} blocks; {room} fit on {self._device.name}")


def launch_config(launch: ResolvedLaunch, device: DeviceInfo) -> Any:
    """A ``CUlaunchConfig`` with the attributes ``launch`` asks for, stream 0."""
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    attributes = []
    if launch.cluster != (1, 1, 1):
        cluster = _attribute(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster
        attributes.append(cluster)
    if launch.cooperative:
        cooperative = _attribute(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        cooperative.value.cooperative = 1
        attributes.append(cooperative)
    # Before sm_90 there is no such launch; in order on the stream means the same, later.
    if launch.programmatic_dependent and device.capability >= FIRST_CLUSTER_CAPABILITY:
        early = _attribute(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


@dataclass(slots=True)
class _Step:
    config: Any
    function: Any
    entry: str


class CudaCall:
    """One bound call: its launches in order on torch's current stream. Not to be called from two threads at once."""

    __slots__ = (
        "_device",
        "_launch",
        "_module",
        "_parameters",
        "_pointer",
        "_steps",
        "_stream",
        "_stream_of",
        "_success",
        "_values",
        "tensors",
        "workspace",
    )

    def __init__(
        self,
        steps: Sequence[tuple[Any, Any, str]],
        values: tuple[CValue, ...],
        device: int,
        tensors: Mapping[str, torch.Tensor | None],
        workspace: torch.Tensor | None,
        module: Any,
    ) -> None:
        driver = _driver()
        self._steps = tuple(_Step(*step) for step in steps)
        self._values = values
        self._parameters = addresses(values)
        self._pointer = ctypes.addressof(self._parameters)
        self._launch = driver.cuLaunchKernelEx
        self._success = driver.CUresult.CUDA_SUCCESS
        self._device = device
        self._stream_of = _raw_stream()
        self._stream: int | None = None
        self._module = module  # unloaded with the last call that needs it
        self.tensors = dict(tensors)
        self.workspace = workspace

    def __call__(self) -> None:
        stream = self._stream_of(self._device)
        if stream != self._stream:
            self._move_to(stream)
        for step in self._steps:
            (status,) = self._launch(step.config, step.function, self._pointer, 0)
            if status != self._success:
                self._recover(step, status)

    def _recover(self, step: _Step, status: Any) -> None:
        """A thread that has not used the device yet has no context; torch gives it one. Anything else is an error."""
        if status == _driver().CUresult.CUDA_ERROR_INVALID_CONTEXT:
            import torch

            torch.cuda.set_device(self._device)
            (status,) = self._launch(step.config, step.function, self._pointer, 0)
        if status != self._success:
            raise LaunchError(f"{step.entry}: the driver refused the launch: {status.name}")

    def _move_to(self, stream: int) -> None:
        handle = _driver().CUstream(stream)
        for step in self._steps:
            step.config.hStream = handle
        self._stream = stream


def _attribute(kind: Any) -> Any:
    attribute = _driver().CUlaunchAttribute()
    attribute.id = kind
    return attribute


def _require(result: tuple[Any, ...], what: str) -> None:
    if result[0] != _driver().CUresult.CUDA_SUCCESS:
        raise LoadError(f"{what}: {result[0].name}")


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingToolError(f"cuda-bindings is not installed ({error}); {INSTALL}") from error
    return driver


@lru_cache(maxsize=1)
def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingToolError(f"cupy is not installed ({error}); {INSTALL}") from error
    return cupy


@lru_cache(maxsize=1)
def _raw_stream() -> Callable[[int], int]:
    """The handle of torch's current stream, by the shortest way this version of torch has."""
    import torch

    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if fast is not None:
        return fast  # type: ignore[no-any-return]
    return lambda device: int(torch.cuda.current_stream(device).cuda_stream)
