"""Timing on a GPU as the judge sees it: asks the worker, draws the same inputs, and checks what came back."""

from __future__ import annotations

import base64
import pickle
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kb.contract import Contract, Role
from kb.dtype import DType
from kb.manifest import Finding, ShapeTiming
from runtime.programs import find_program
from runtime.timing import CACHE_MULTIPLE, Timing
from validator.gates.context import Context
from validator.inputs import CallInputs
from validator.numerics import judge_outputs, truth_of
from validator.performance.verdict import record
from validator.shapes import Shape
from validator.worker.device_timing import change_activations, timing_sets, written_tensors

# At most so many bytes of outputs come back; caches are large and their sets alike.
_RETURNED_BYTES = 256 << 20
_REMEMBERS = 1.25
_REPLAY_NOISE_US = 20.0


def time_on_gpu(
    context: Context, shape: Shape, storage: DType, bandwidth_gbps: float, seconds: float
) -> tuple[ShapeTiming | None, list[Finding]]:
    """The record of one shape and what was wrong with it. Raises WorkerFailure."""
    contract = context.contract
    min_bytes = CACHE_MULTIPLE * context.device.cache_bytes
    seed = context.seed_for("timing", shape.dims, storage)
    sets = timing_sets(contract, shape.dims, storage, "cuda", min_bytes, seed)
    a_set = sum(t.numel() * t.element_size() for _, t in written_tensors(contract, sets[0]))
    count = max(1, min(len(sets), _RETURNED_BYTES // max(1, 2 * a_set)))
    resident = context.resident()
    resident.drop()
    number, memory = resident.share(max(4096, 2 * count * a_set))
    kernel, _ = resident.load(context.compiled(shape, storage))
    request = {
        "op": "time",
        "kernel": kernel,
        "arena": number,
        "dims": dict(shape.dims),
        "seed": seed,
        "min_bytes": min_bytes,
        "baselines": [b.name for b in context.baselines()],
        "seconds": seconds,
        "quick": context.options.quick,
        "sets": count,
        "program": _program(contract),
    }
    reply = resident.ask(request, 120 + 4 * seconds)
    findings = _check(context, shape, storage, sets, count, memory)
    if findings:
        return None, findings
    if (remembered := _remembered(reply, shape)) is not None:
        return None, [remembered]
    timings = _timings(reply["timings"])
    if len(timings) == 1:
        reasons = "; ".join(f"{name}: {why}" for name, why in reply["left_out"].items()) or "none is installed"
        return None, [Finding(code="no-baseline", message=f"no library path ran: {reasons}", shape=dict(shape.dims))]
    cold = len(sets) * contract.bytes_moved(shape.dims, storage) >= min_bytes
    return record(contract, shape.dims, storage, timings, bandwidth_gbps, cold, context.target), []


def _program(contract: Contract) -> str | None:
    """The program that states the contract, for the worker, which has to run it as a library path; None without one."""
    program = find_program(contract.id)
    return None if program is None else base64.b64encode(pickle.dumps(program)).decode()


def _remembered(reply: Mapping[str, Any], shape: Shape) -> Finding | None:
    """A finding when calls on inputs never seen take clearly longer than the same calls again."""
    fresh, again = statistics.median(reply["fresh_us"]), statistics.median(reply["again_us"])
    if fresh <= _REMEMBERS * again + _REPLAY_NOISE_US:
        return None
    message = f"{fresh:.1f} us on inputs never seen and {again:.1f} us on the same again: results are remembered"
    return Finding(code="remembers-results", message=message, shape=dict(shape.dims))


def _timings(reply: Mapping[str, Mapping[str, Any]]) -> dict[str, Timing]:
    return {
        str(name): Timing.of([float(s) for s in t["samples"]], int(t["calls"]), float(t["overhead"]))
        for name, t in reply.items()
    }


def _check(
    context: Context, shape: Shape, storage: DType, sets: Sequence[CallInputs], count: int, memory: torch.Tensor
) -> list[Finding]:
    """Judge every output that came back, for the inputs as they were and as they were changed in place."""
    cursor = 0
    for label in ("timed shape", "timed shape, changed in place"):
        if label != "timed shape":
            change_activations(context.contract, sets)
        for inputs in sets[:count]:
            outputs, cursor = _read(context.contract, inputs, memory, cursor)
            truth = truth_of(
                context.contract, shape.dims, storage, _inputs_only(context.contract, inputs), context.baselines()
            )
            judged = judge_outputs(context.contract, shape.dims, storage, label, truth, outputs)
            if judged.findings:
                return list(judged.findings)
    return []


def _read(
    contract: Contract, inputs: CallInputs, memory: torch.Tensor, cursor: int
) -> tuple[dict[str, torch.Tensor], int]:
    outputs = {}
    for name, like in written_tensors(contract, inputs):
        size = like.numel() * like.element_size()
        raw = memory[cursor : cursor + size].clone()
        outputs[name] = raw.view(like.dtype).view(like.shape).to(like.device)
        cursor += size
    return outputs, cursor


def _inputs_only(contract: Contract, inputs: CallInputs) -> CallInputs:
    """Without outputs, so that a baseline gets its own."""
    names = {t.name for t in contract.tensors if t.role is not Role.OUT}
    return CallInputs({n: t for n, t in inputs.tensors.items() if n in names}, inputs.scalars)
