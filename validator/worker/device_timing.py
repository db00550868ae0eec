"""Timing on a GPU, inside the worker: candidate and library paths in one process, between events of one stream.

A CUDA candidate has no host code, so the Python that measures here is out of its reach; what it could do is leave work
out. Therefore outputs come back for the judge to compare: those of a graph of all timed calls, replayed on poisoned
outputs after the timing, and again after the activations have been changed in place. A kernel could still keep results
(in its workspace, in shared memory that is never cleared) and give them again for inputs it has seen: so calls on
inputs never seen are timed against the same calls again. Inputs are drawn here from a seed, and drawn again by the
judge, whose copy is the one that truths are computed from.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kb.contract import Contract, Role
from kb.dtype import DType

if TYPE_CHECKING:
    import torch

    from runtime.kernel import Kernel
    from validator.inputs import CallInputs

# Activations are small; a tensor beyond this is a weight or a cache and keeps its contents.
VERSIONED_BYTES = 4 << 20


def time_on_device(kernel: Kernel, request: Mapping[str, Any], returned: torch.Tensor) -> dict[str, Any]:
    """Time as ``request`` says and write the outputs of both versions into ``returned`` (uint8, host memory).

    Request: ``dims`` (all of them), ``seed``, ``min_bytes``, ``baselines`` (names), ``seconds``, ``quick``, ``sets``
    (how many to return), ``program`` (pickled, of a contract that is stated by one). Reply: samples and overhead by
    arm, and why a library path was left out.
    """
    import torch

    from runtime.baselines import get_baseline
    from runtime.errors import RuntimeFailure
    from runtime.stopwatch import stopwatch_for
    from runtime.timing import Arm, Effort, time_interleaved

    signature = kernel.compiled.signature
    contract, storage, target = signature.contract, signature.storage, signature.target
    if request.get("program") is not None:
        from runtime.programs import register_program

        register_program(contract.id, pickle.loads(base64.b64decode(request["program"])))  # noqa: S301 - the judge's
    dims: Mapping[str, int] = request["dims"]
    sets = timing_sets(contract, dims, storage, "cuda", request["min_bytes"], request["seed"])
    workspace = kernel.new_workspace()
    calls = [kernel.bind(s.tensors, s.scalars, workspace=workspace) for s in sets]
    before = [{n: t.clone() for n, t in restored(contract, s).items()} for s in sets]
    arms = {"candidate": Arm(tuple(calls))}
    left_out: dict[str, str] = {}
    for name in request["baselines"]:
        try:
            work = [own_outputs(contract, dims, storage, s) for s in sets]
            baseline = get_baseline(contract.id, name)
            prepared = tuple(baseline.prepare(contract, dims, storage, w.tensors, w.scalars) for w in work)
            for call in prepared[:1]:
                call()
            torch.cuda.synchronize()
            arms[name] = Arm(prepared)
        except (RuntimeFailure, RuntimeError, ValueError, ImportError) as error:
            left_out[name] = f"{type(error).__name__}: {error}"[:300]
    seconds = request["seconds"]
    effort = Effort(0.01, 5, 40, seconds) if request["quick"] else Effort(0.003, 15, 200, seconds)
    timings = time_interleaved(arms, stopwatch_for(target), effort)
    graph = _capture(calls)
    _return_outputs(contract, sets, before, graph, request, returned)
    fresh, again = _times_of_new_and_known_inputs(contract, sets, before, graph, workspace, kernel.workspace_zeroed)
    return {
        "fresh_us": fresh,
        "again_us": again,
        "timings": {
            name: {"samples": list(t.samples_us), "calls": t.calls_per_sample, "overhead": t.overhead_us}
            for name, t in timings.items()
        },
        "left_out": left_out,
    }


def timing_sets(
    contract: Contract, dims: Mapping[str, int], storage: DType, device: str, min_bytes: int, seed: int
) -> Sequence[CallInputs]:
    """The sets of one timing. Equal arguments give equal bits, here and in the judge."""
    from validator.inputs import make_timing_inputs

    return make_timing_inputs(
        contract, dims, storage, device, min_bytes, seed=seed, max_sets=32, max_allocated_bytes=4 << 30
    )


def restored(contract: Contract, inputs: CallInputs) -> dict[str, torch.Tensor]:
    """Updated tensors that must be put back before a call gives the same again (a cache's slots need not)."""
    return {
        t.name: values
        for t in contract.tensors
        if t.role is Role.INOUT and (values := inputs.tensors.get(t.name)) is not None and not t.name.endswith("_cache")
    }


def change_activations(contract: Contract, sets: Sequence[CallInputs]) -> None:
    """Other contents in place, equally well scaled: every small floating input in reverse order, shared ones once."""
    seen: set[int] = set()
    for inputs in sets:
        for tensor in contract.tensors:
            values = inputs.tensors.get(tensor.name)
            if values is None or tensor.role is not Role.IN or tensor.dtype is not DType.T:
                continue
            if values.numel() * values.element_size() <= VERSIONED_BYTES and values.data_ptr() not in seen:
                values.copy_(values.flatten().flip(0).view(values.shape).clone())
                seen.add(values.data_ptr())


def own_outputs(contract: Contract, dims: Mapping[str, int], storage: DType, inputs: CallInputs) -> CallInputs:
    """The same inputs with outputs and updated tensors of their own."""
    from validator.inputs import allocate_outputs

    own = allocate_outputs(contract, dims, storage, "cuda")
    for tensor in contract.tensors:
        values = inputs.tensors.get(tensor.name)
        if tensor.role is Role.INOUT and values is not None:
            own[tensor.name] = values.clone()
    return inputs.with_tensors(own)


def written_tensors(contract: Contract, inputs: CallInputs) -> list[tuple[str, torch.Tensor]]:
    """What a call writes, in the contract's order."""
    named = ((t.name, inputs.tensors.get(t.name)) for t in contract.tensors if t.role is not Role.IN)
    return [(name, values) for name, values in named if values is not None]


def _capture(calls: Sequence[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _return_outputs(
    contract: Contract,
    sets: Sequence[CallInputs],
    before: Sequence[Mapping[str, torch.Tensor]],
    graph: torch.cuda.CUDAGraph,
    request: Mapping[str, Any],
    returned: torch.Tensor,
) -> None:
    import torch

    cursor = 0
    for version in (0, 1):
        if version:
            change_activations(contract, sets)
        _restore(sets, before)
        for inputs in sets:
            for tensor in contract.tensors:
                values = inputs.tensors.get(tensor.name)
                if tensor.role is Role.OUT and values is not None:
                    values.view(-1).view(torch.uint8).fill_(0xFF)  # NaN in every type, and no index
        graph.replay()
        torch.cuda.synchronize()
        for inputs in sets[: request["sets"]]:
            for _, written in written_tensors(contract, inputs):
                raw = written.reshape(-1).view(torch.uint8)
                returned[cursor : cursor + raw.numel()].copy_(raw)
                cursor += raw.numel()


def _times_of_new_and_known_inputs(
    contract: Contract,
    sets: Sequence[CallInputs],
    before: Sequence[Mapping[str, torch.Tensor]],
    graph: torch.cuda.CUDAGraph,
    workspace: torch.Tensor | None,
    zeroed: bool,
) -> tuple[list[float], list[float]]:
    """Microseconds of a replay on inputs not seen before, and of the next on the same."""
    import torch

    fresh: list[float] = []
    again: list[float] = []
    for number in range(7):
        factor = -1.0 if number % 2 else 1.0 - 2.0**-6
        seen: set[int] = set()
        for inputs, kept in zip(sets, before, strict=True):
            for tensor in contract.tensors:
                values = kept.get(tensor.name)
                if values is None and tensor.role is Role.IN and tensor.dtype is DType.T:
                    values = inputs.tensors.get(tensor.name)
                if values is None or values.data_ptr() in seen:
                    continue
                if values.numel() * values.element_size() <= VERSIONED_BYTES:
                    values.mul_(factor)
                    seen.add(values.data_ptr())
        if workspace is not None:
            workspace.fill_(0 if zeroed else 0xFF)
        for samples in (fresh, again):
            _restore(sets, before)
            torch.cuda.synchronize()
            event: Any = torch.cuda.Event
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples.append(float(start.elapsed_time(end)) * 1000)
    return fresh, again


def _restore(sets: Sequence[CallInputs], before: Sequence[Mapping[str, torch.Tensor]]) -> None:
    for inputs, kept in zip(sets, before, strict=True):
        for name, values in kept.items():
            target = inputs.tensors[name]
            assert target is not None
            target.copy_(values)
