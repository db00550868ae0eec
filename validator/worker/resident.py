"""The confined side: receives requests, loads the candidate, calls it. Everything here may be corrupted by it.

Requests are dicts with ``op`` and ``token``; a reply echoes the token. Operations:

``map``   descriptor of an arena, ``nbytes`` → ``arena``
``load``  ``compiled`` (pickled runtime.kernel.Compiled, from the judge) → ``kernel``, ``resources``
``bind``  ``kernel``, ``arena``, ``slots``, ``scalars`` → ``call``
``call``  ``calls`` run in order; ``graph`` replays a CUDA graph of them
``late``  CUDA only: ``inputs`` (pickled validator.worker.late_inputs.LateInputs) stands in front of ``call`` and brings
          what it reads after it has begun → ``early``, the arena's offset of the first byte it wrote before that
``dirty`` CUDA only: ``dirtying`` (pickled validator.worker.shared_memory.Dirtying) runs before every call from now on
``drop``  forget all kernels, calls and arenas
``time``  CUDA only: see validator.worker.device_timing
"""

from __future__ import annotations

import base64
import ctypes
import mmap
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from validator.worker.wire import BrokenChannel, Channel

if TYPE_CHECKING:
    import torch

    from runtime.kernel import BoundCall, Kernel


class _Memory:
    """An arena as this process sees it: the shared pages, and on CUDA a device copy of them."""

    def __init__(self, descriptor: int, nbytes: int, device: str) -> None:
        import torch

        self._map = mmap.mmap(descriptor, nbytes)
        os.close(descriptor)
        self.host = torch.frombuffer(self._map, dtype=torch.uint8)
        self._copied = device != "cpu"
        self._where = device
        self._device: torch.Tensor | None = None

    @property
    def device(self) -> torch.Tensor:
        """The memory calls run on; on CUDA allocated when a call is bound to it."""
        import torch

        if not self._copied:
            return self.host
        if self._device is None:
            self._device = torch.empty(self.host.numel(), dtype=torch.uint8, device=self._where)
        return self._device

    def upload(self) -> None:
        if self._copied:
            self.device.copy_(self.host)

    def download(self) -> None:
        if self._copied:
            self.host.copy_(self.device)

    def view(self, slot: Mapping[str, Any]) -> torch.Tensor:
        import torch

        part = self.device[slot["offset"] : slot["offset"] + slot["nbytes"]]
        return part.view(getattr(torch, slot["dtype"])).view(slot["shape"])


class Resident:
    """State of the confined process."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._arenas: list[_Memory] = []
        self._kernels: list[Kernel] = []
        self._calls: list[tuple[BoundCall, int]] = []
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._dirty: Callable[[], None] = _nothing

    def handle(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Serve one request."""
        operations: dict[str, Callable[[], dict[str, Any]]] = {
            "map": lambda: self._map(descriptors[0], request["nbytes"]),
            "load": lambda: self._load(request["compiled"]),
            "bind": lambda: self._bind(request),
            "call": lambda: self._call(request["calls"], request["graph"]),
            "dirty": lambda: self._dirty_with(request["dirtying"]),
            "late": lambda: self._late(request["call"], request["inputs"]),
            "drop": self._drop,
            "time": lambda: self._time(request),
            "warm": self._warm,
        }
        return operations[request["op"]]()

    def _warm(self) -> dict[str, Any]:
        """Touch the device before any candidate is here, so that a sandbox too tight for it shows now."""
        import torch

        return {"sum": float(torch.ones(8, device=self._device).sum())}

    def _map(self, descriptor: int, nbytes: int) -> dict[str, Any]:
        self._arenas.append(_Memory(descriptor, nbytes, self._device))
        return {"arena": len(self._arenas) - 1}

    def _load(self, compiled: str) -> dict[str, Any]:
        from dataclasses import asdict

        from runtime.kernel import Kernel

        kernel = Kernel(pickle.loads(base64.b64decode(compiled)))  # noqa: S301 - from the judge, authenticated
        self._kernels.append(kernel)
        return {
            "kernel": len(self._kernels) - 1,
            "resources": {name: asdict(r) for name, r in kernel.resources.items()},
        }

    def _bind(self, request: Mapping[str, Any]) -> dict[str, Any]:
        kernel, memory = self._kernels[request["kernel"]], self._arenas[request["arena"]]
        tensors: dict[str, torch.Tensor | None] = {s["name"]: memory.view(s) for s in request["slots"]}
        workspace = tensors.pop("workspace", None)
        call = kernel.bind(tensors, request["scalars"], workspace=workspace)
        self._calls.append((call, request["arena"]))
        return {"call": len(self._calls) - 1}

    def _dirty_with(self, dirtying: str) -> dict[str, Any]:
        """Tried once at once: what cannot run here must not be held against a candidate later."""
        import torch

        from runtime.launch_cuda import CudaModule

        wanted = pickle.loads(base64.b64decode(dirtying))  # noqa: S301 - from the judge, authenticated
        try:
            call = CudaModule(wanted.image, wanted.launches, wanted.device).bind((), {}, None)
            call()
            torch.cuda.synchronize()
        except Exception as error:
            return {"runs": False, "why": str(error)[:2000]}
        self._dirty = call
        return {"runs": True}

    def _late(self, number: int, inputs: str) -> dict[str, Any]:
        import torch

        from runtime.launch_cuda import CudaModule
        from validator.worker.late_inputs import POISON

        wanted = pickle.loads(base64.b64decode(inputs))  # noqa: S301 - from the judge, authenticated
        call, index = self._calls[number]
        memory = self._arenas[index]
        memory.upload()
        there = memory.device.clone()
        seen = there.clone()
        poison = torch.tensor(POISON, dtype=torch.uint8, device=there.device)
        for offset, nbytes in wanted.late:
            memory.device[offset : offset + nbytes] = poison.repeat(-(-nbytes // 2))[:nbytes]
        before = memory.device.clone()
        spans = [len(wanted.watched), len(wanted.late), *(n for span in (*wanted.watched, *wanted.late) for n in span)]
        table = torch.tensor(spans, dtype=torch.int64, device=there.device)
        pointers = tuple(ctypes.c_void_p(t.data_ptr()) for t in (memory.device, there, seen, table))
        front = CudaModule(wanted.image, wanted.launches, wanted.device).bind(pointers, {}, None)
        torch.cuda.synchronize()
        front()
        call()
        torch.cuda.synchronize()
        memory.download()
        for offset, nbytes in wanted.watched:
            changed = (seen[offset : offset + nbytes] != before[offset : offset + nbytes]).nonzero()
            if changed.numel():
                return {"early": offset + int(changed[0])}
        return {"early": None}

    def _call(self, calls: Sequence[int], graph: bool) -> dict[str, Any]:
        touched = sorted({self._calls[i][1] for i in calls})
        for index in touched:
            self._arenas[index].upload()
        if graph:
            self._replay(tuple(calls))
        else:
            for i in calls:
                self._dirty()
                self._calls[i][0]()
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize()
        for index in touched:
            self._arenas[index].download()
        return {}

    def _replay(self, calls: tuple[int, ...]) -> None:
        import torch

        if calls not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in calls:
                    self._calls[i][0]()
            self._graphs[calls] = graph
        self._dirty()
        self._graphs[calls].replay()

    def _drop(self) -> dict[str, Any]:
        self._dirty = _nothing
        self._graphs.clear()
        self._calls.clear()
        self._kernels.clear()
        self._arenas.clear()
        return {}

    def _time(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from validator.worker.device_timing import time_on_device

        return time_on_device(self._kernels[request["kernel"]], request, self._arenas[request["arena"]].host)


def _nothing() -> None:
    """What runs before a call where there is nothing to dirty."""


def reside(channel: Channel, device: str) -> None:
    """Serve requests until the channel closes. Never raises: what goes wrong in a request is its reply."""
    resident = Resident(device)
    while True:
        try:
            request, descriptors = channel.receive()
        except BrokenChannel:
            return
        try:
            reply = resident.handle(request, descriptors)
        except Exception as error:
            reply = {"error": type(error).__name__, "message": str(error)[:2000]}
        try:
            channel.send({"token": request["token"], **reply})
        except BrokenChannel:
            return
