"""What a gate is given: the candidate, the contract, the shapes to try, and the worker to try them in."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import Finding, GateName, GateResult, Outcome, ShapeError, ShapeTiming
from runtime.baselines import Baseline, available_baselines
from runtime.compile_cache import CompileCache
from runtime.device import DeviceInfo
from runtime.kernel import Compiled, compile_candidate
from validator.shapes import Shape, held_shapes, hidden_shapes, sweep_shapes
from validator.worker import Resident, Worker, WorkerFailure


@dataclass(frozen=True, slots=True)
class Options:
    """How much to do.

    ``quick`` tries fewer shapes, one storage type a shape in turn and fewer distributions, compiles when needed, and
    times briefly; it is for rounds and tests, not for admission. ``dims`` and ``storages`` narrow the trial to one
    shape and to some types; ``timed`` replaces the contract's performance shapes. ``hidden`` is the number of shapes
    outside the sweep. ``call_seconds`` is how long one call may take before it counts as hung, ``budget_seconds`` how
    long all of it may. ``at`` holds the compile-time dims: everything is tried and timed at them, over the run-time
    dims of the sweep, and acceptance is for them alone. ``turns`` is the folder of locks by which judgements of several
    processes share a device: they check side by side and measure one at a time; None: this process takes the device to
    be its own. ``also``: older architectures the candidate must compile for.
    """

    gates: tuple[GateName, ...] = tuple(GateName)
    keep_going: bool = False
    quick: bool = False
    dims: Mapping[str, int] | None = None
    at: Mapping[str, int] | None = None
    timed: tuple[Mapping[str, int], ...] = ()
    storages: tuple[DType, ...] | None = None
    hidden: int = 4
    call_seconds: float = 10.0
    budget_seconds: float = 900.0
    timing_seconds: float = 4.0
    compile_jobs: int = 0
    turns: Path | None = None
    also: tuple[str, ...] = ()

    def whole(self, contract: Contract) -> bool:
        """Whether the trial covers all a contract asks for (at the dims that are held), so that it may accept."""
        covered = self.storages is None or set(self.storages) >= set(contract.dtypes.storage)
        return not self.quick and self.dims is None and covered

    @property
    def jobs(self) -> int:
        """Compilations to run side by side."""
        return self.compile_jobs or max(1, min(8, len(os.sched_getaffinity(0))))


@dataclass(frozen=True, slots=True)
class Event:
    """Something for a live view: a gate starts, moves on, or ends (``result``). ``share``: done so far, 0 to 1."""

    gate: GateName
    message: str = ""
    share: float | None = None
    result: GateResult | None = None


class BudgetSpent(Exception):  # noqa: N818 - the judge's limit, not the candidate's fault
    """The judgement ran out of its own time."""


@dataclass(slots=True)
class Context:
    """State of one judgement. ``device`` is what the candidate runs on or, where not ``runs``, is compiled for."""

    candidate: Candidate
    contract: Contract
    device: DeviceInfo
    runs: bool
    options: Options
    seed: int
    cache: CompileCache
    worker: Callable[[bool], Worker]
    emit: Callable[[Event], None]
    errors: list[ShapeError] = field(default_factory=list)
    timings: list[ShapeTiming] = field(default_factory=list)
    layers: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)
    _compiled: dict[Any, Compiled] = field(default_factory=dict)
    _resident: Resident | None = None
    _timing: bool = False

    @property
    def target(self) -> Target:
        return self.candidate.target

    @property
    def torch_device(self) -> str:
        """Where the judge computes truths and runs baselines."""
        return self.target.value if self.runs else "cpu"

    @property
    def storages(self) -> tuple[DType, ...]:
        return self.options.storages or self.contract.dtypes.storage

    def shapes(self) -> list[Shape]:
        """The shapes to try, hidden ones last; just the one asked for where there is one."""
        if self.options.dims is not None:
            return [Shape(dict(self.options.dims))]
        if self.options.at is not None:
            return held_shapes(self.contract, self.options.at, self.seed, self.options.hidden)
        return [*sweep_shapes(self.contract), *hidden_shapes(self.contract, self.seed, self.options.hidden)]

    def pairs(self) -> list[tuple[Shape, DType]]:
        """Shapes with storage types: all of them, or when quick each shape once with the types in turn."""
        shapes, storages = self.shapes(), self.storages
        if not self.options.quick:
            return [(shape, storage) for shape in shapes for storage in storages]
        pairs = [(shape, storages[i % len(storages)]) for i, shape in enumerate(shapes)]
        tried = {storage for _, storage in pairs}
        return pairs + [(shapes[0], storage) for storage in storages if storage not in tried]

    def seed_for(self, *what: object) -> int:
        """A seed of its own for every use, decided by the judgement's seed."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, what))}").getrandbits(48)  # noqa: S311

    def compiled(self, shape: Shape, storage: DType) -> Compiled:
        """The candidate compiled for a shape. Raises runtime.errors.RuntimeFailure."""
        key = (tuple(sorted(shape.dims.items())), storage)
        if key not in self._compiled:
            self._compiled[key] = compile_candidate(
                self.candidate, self.contract, shape.dims, storage, cache=self.cache, device=self.device
            )
        return self._compiled[key]

    def remember(self, shape: Shape, storage: DType, compiled: Compiled) -> None:
        """Keep what was compiled elsewhere."""
        self._compiled[(tuple(sorted(shape.dims.items())), storage)] = compiled

    def resident(self, timing: bool = False) -> Resident:
        """The confined process that holds the candidate; opened at the first call, and again after a failure.

        ``timing``: one that runs as a deployed kernel would, not one that is kind to its neighbours.
        """
        if self._resident is None or self._resident.ended or self._timing != timing:
            self.close_resident()
            self._timing = timing
            readable = {self.cache.root, *(c.image.path.parent for c in self._compiled.values())}
            self._resident = _open(self.worker(timing), sorted(readable), self.target)
            self.layers = self._resident.layers
        return self._resident

    def close_resident(self) -> None:
        if self._resident is not None:
            self._resident.close()
            self._resident = None

    def baselines(self) -> Sequence[Baseline]:
        """Library paths that can run here, in the contract's order."""
        return available_baselines(self.contract, self.target)

    def check_budget(self) -> None:
        """Raises BudgetSpent once the judgement has used its time."""
        if time.monotonic() - self.started > self.options.budget_seconds:
            raise BudgetSpent(f"the judgement's {self.options.budget_seconds:g} s are spent")

    def progress(self, gate: GateName, message: str, share: float) -> None:
        """Tell whoever watches, and stop where the budget ends. Raises BudgetSpent."""
        self.check_budget()
        self.emit(Event(gate, message, share))


def _open(worker: Worker, readable: Sequence[Path], target: Target) -> Resident:
    """A resident that can reach its device. Where a GPU's driver does not work inside namespaces, one without them."""
    if target is not Target.CUDA:
        return worker.open(readable=readable)
    for namespaces in (True, False):
        resident = worker.open(readable=readable, namespaces=namespaces)
        try:
            resident.warm()
        except WorkerFailure:
            resident.close()
            if not namespaces:
                raise
        else:
            return resident
    raise AssertionError("the second attempt returned or raised")


class Gate(Protocol):
    """One gate. ``needs_run``: the candidate must be able to run on this machine."""

    name: ClassVar[GateName]
    needs_run: ClassVar[bool]

    def run(self, context: Context) -> GateResult:
        """Judge; findings make it fail. May raise WorkerFailure, RuntimeFailure and BudgetSpent."""


def passed_or_failed(name: GateName, findings: Sequence[Finding], **details: Any) -> GateResult:
    """A result that failed if it has findings."""
    outcome = Outcome.FAILED if findings else Outcome.PASSED
    return GateResult(gate=name, outcome=outcome, findings=tuple(findings), details=details)


def describe(shape: Shape, storage: DType) -> str:
    """A shape in a few words, for progress."""
    dims = " ".join(f"{name}={value}" for name, value in list(shape.dims.items())[:4])
    return f"{dims} {storage.value}{' (hidden)' if shape.hidden else ''}"
