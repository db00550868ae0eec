"""Judging a candidate: the gates in order, stopped at the first failure, and a verdict that holds all of it.

    verdict = judge(candidate, contract)
    verdict.accepted, verdict.failed_gate

Accepted means that static, compile, interface, numerics and performance passed, on a machine that could run the
candidate, and that the sanitizer passed or its tool is not installed. A gate that was left out by choice or for want of
a device is recorded as skipped, and then nothing is accepted; neither is it after a quick judgement, or one of a single
shape or of some storage types only. ``failed_gate`` is None for those all the same. With ``options.at`` a verdict is
about those compile-time dims alone: it extends a kernel that was accepted as a whole, and admits none.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from kb.candidate import Candidate
from kb.contract import Contract, DimKind
from kb.coverage import compile_dims
from kb.dtype import DType, Target
from kb.manifest import Environment, Finding, GateName, GateResult, Outcome, Verdict
from runtime.clocks import read_clocks
from runtime.compile_cache import CompileCache
from runtime.device import DeviceInfo, assumed_cuda_device, cpu_device, cuda_device, has_cuda
from runtime.errors import CompileError, LaunchError, LoadError, MissingToolError
from validator.gates import GATES, Context, Event, Gate, Options
from validator.gates.context import BudgetSpent
from validator.shapes import held_shapes
from validator.turns import Turns
from validator.worker import Worker, WorkerFailure

ASSUMED_ARCH = "sm_90"
_CODES = {CompileError: "compile-error", LoadError: "bad-launch", LaunchError: "launch-error"}


def judge(
    candidate: Candidate,
    contract: Contract,
    *,
    options: Options | None = None,
    dims: Mapping[str, int] | None = None,
    storages: tuple[DType, ...] | None = None,
    seed: int | None = None,
    worker: Worker | None = None,
    cache: CompileCache | None = None,
    device: DeviceInfo | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Verdict:
    """Judge ``candidate`` by ``contract``.

    ``dims`` and ``storages`` narrow the trial to one shape and to some storage types. ``seed`` decides the hidden
    shapes and all inputs; drawn when not given, and recorded. ``worker`` lends a running supervisor (it is not
    closed), which saves its start for many judgements. ``device`` is what to compile for where there is no GPU.
    ``on_event`` is told of progress. Raises ValueError when candidate and contract do not belong together or ``dims``
    do not fit.
    """
    if candidate.contract != contract.id:
        raise ValueError(f"the candidate is for contract '{candidate.contract}', not '{contract.id}'")
    options = options or Options()
    if dims is not None or storages is not None:
        options = _narrowed(options, dims, storages)
    if options.dims is not None:
        contract.check_dims(options.dims)
    if options.at is not None:
        require_held(contract, options)
    found, runs = _device(candidate.target, device)
    seed = secrets.randbits(48) if seed is None else seed
    lender = _Lender(candidate.target, worker)
    emit = on_event or (lambda _: None)
    context = Context(
        candidate=candidate,
        contract=contract,
        device=found,
        runs=runs,
        options=options,
        seed=seed,
        cache=cache or CompileCache(),
        worker=lender.get,
        emit=emit,
    )
    try:
        results = _run_all(context)
    finally:
        context.close_resident()
        lender.close()
    return Verdict(
        candidate=candidate.digest,
        contract=contract.id,
        contract_version=contract.version,
        target=candidate.target,
        accepted=runs and options.whole(contract) and _accepted(results),
        gates=tuple(results),
        errors=tuple(context.errors),
        timings=tuple(context.timings),
        environment=_environment(context, results),
        seed=seed,
        judged_at=datetime.now(UTC),
        at=compile_dims(contract, options.at) if options.at is not None else None,
    )


def _run_all(context: Context) -> list[GateResult]:
    results: list[GateResult] = []
    stopped = ""
    for gate in GATES:
        if gate.name not in context.options.gates:
            results.append(_skipped(gate.name, "left out by choice"))
        elif stopped:
            results.append(_skipped(gate.name, stopped))
        elif gate.needs_run and not context.runs:
            results.append(_skipped(gate.name, f"no {context.target.value} device on this machine"))
        else:
            results.append(_run_one(gate, context))
            if results[-1].outcome is Outcome.FAILED and not context.options.keep_going:
                stopped = f"the {gate.name.value} gate failed"
        context.emit(Event(gate.name, result=results[-1]))
    return results


def _run_one(gate: Gate, context: Context) -> GateResult:
    """One gate, timed; what the candidate made go wrong is a finding, what this machine lacks a reason to skip."""
    context.emit(Event(gate.name, "", 0.0))
    started = time.monotonic()
    try:
        with _turn(gate, context):
            result = gate.run(context)
    except WorkerFailure as failure:
        result = _failed(gate.name, failure.finding)
    except (CompileError, LoadError, LaunchError) as error:
        result = _failed(gate.name, Finding(code=_CODES[type(error)], message=str(error)[:2000]))
    except MissingToolError as error:
        result = _skipped(gate.name, str(error))
    except BudgetSpent as spent:
        result = _skipped(gate.name, str(spent))
    return result.model_copy(update={"seconds": round(time.monotonic() - started, 3)})


def _turn(gate: Gate, context: Context) -> contextlib.AbstractContextManager[None]:
    """The gate's turn on the device. Only what runs there needs one, and only what is timed needs it alone."""
    if context.options.turns is None or not gate.needs_run:
        return contextlib.nullcontext()
    # Each device has turns of its own, whatever ordinal a process sees it under.
    turns = Turns(context.options.turns, "-".join(filter(None, (context.target.value, context.device.uuid))))
    return turns.alone() if gate.name is GateName.PERFORMANCE else turns.shared()


def _accepted(results: list[GateResult]) -> bool:
    outcomes = {r.gate: r for r in results}
    needed = (GateName.STATIC, GateName.COMPILE, GateName.INTERFACE, GateName.NUMERICS, GateName.PERFORMANCE)
    if any(outcomes[name].outcome is not Outcome.PASSED for name in needed):
        return False
    sanitizer = outcomes[GateName.SANITIZER]
    absent = sanitizer.outcome is Outcome.SKIPPED and sanitizer.reason != "left out by choice"
    return sanitizer.outcome is Outcome.PASSED or absent


def _device(target: Target, given: DeviceInfo | None) -> tuple[DeviceInfo, bool]:
    """The device and whether it is here."""
    if target is Target.CPU:
        import torch  # noqa: F401 - the number of threads is torch's, in the judge as in the worker

        return given or cpu_device(), True
    if has_cuda():
        return given or cuda_device(), True
    return given or assumed_cuda_device(ASSUMED_ARCH), False


def _environment(context: Context, results: list[GateResult]) -> Environment:
    compiled = next((r for r in results if r.gate is GateName.COMPILE), None)
    software = {"python": platform.python_version(), **context.device.versions}
    for baseline in context.baselines() if context.runs else ():
        software |= baseline.libraries()
    return Environment(
        hardware=context.device.name,
        arch=context.device.arch,
        driver=context.device.driver,
        compiler=str(compiled.details.get("compiler", "")) if compiled else "",
        software=software,
        sandbox=context.layers,
        clocks=dict(read_clocks(context.target, context.device.uuid)) if context.runs else {},
    )


def _narrowed(options: Options, dims: Mapping[str, int] | None, storages: tuple[DType, ...] | None) -> Options:
    from dataclasses import replace

    return replace(options, dims=dims or options.dims, storages=storages or options.storages)


def require_held(contract: Contract, options: Options) -> None:
    """Raises ValueError unless ``options.at`` names the contract's compile-time dims, all of them and no other, with
    values it allows, and all timed shapes have them."""
    assert options.at is not None  # the caller's condition
    if options.dims is not None:
        raise ValueError("a trial is of one shape (dims) or holds compile-time dims (at), not both")
    names = contract.dims_of(DimKind.STATIC, DimKind.FLAG)
    missing = [n for n in names if n not in options.at]
    if missing:
        raise ValueError(f"'{missing[0]}' has no value; {contract.id} compiles in {', '.join(names)}")
    unknown = [n for n in options.at if n not in names]
    if unknown:
        raise ValueError(f"'{unknown[0]}' is not compiled into {contract.id}; {', '.join(names)} are")
    held_shapes(contract, options.at, 0, 0)
    if any(shape.get(n) != options.at[n] for shape in options.timed for n in names):
        raise ValueError("a timed shape has other compile-time dims than those that are held")


def _skipped(name: GateName, reason: str) -> GateResult:
    return GateResult(gate=name, outcome=Outcome.SKIPPED, reason=reason)


def _failed(name: GateName, finding: Finding) -> GateResult:
    return GateResult(gate=name, outcome=Outcome.FAILED, findings=(finding,))


class _Lender:
    """Workers when they are needed: the lent one for everything but timing, and our own, closed at the end."""

    def __init__(self, target: Target, lent: Worker | None) -> None:
        if lent is not None and lent.target is not target:
            raise ValueError(f"the worker is for {lent.target.value}, the candidate for {target.value}")
        self._target = target
        self._lent = lent
        self._own: dict[bool, Worker] = {}

    def get(self, timing: bool) -> Worker:
        alike = self._target is Target.CUDA  # on a GPU the host's threads have no part in the time
        if self._lent is not None and (alike or not timing):
            return self._lent
        key = timing and not alike
        if key not in self._own:
            self._own[key] = Worker(self._target, patient=not key)
        return self._own[key]

    def close(self) -> None:
        for worker in self._own.values():
            worker.close()
        self._own.clear()


__all__ = ["Event", "Options", "judge"]
