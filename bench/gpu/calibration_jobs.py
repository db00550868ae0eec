"""The calibration corpus as jobs, and what a process of its own does with one."""

from __future__ import annotations

import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.candidate import Candidate
from kb.candidate_files import CandidateFileError, read_candidate
from kb.dtype import DType, Target
from kb.library import library_root, load_library
from kb.manifest import GateName, Verdict
from kb.store.entry import DamagedEntryError, read_entry
from kb.yaml import load_file
from runtime.compile_cache import CompileCache
from validator.gates import Options
from validator.shapes import Shape

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "calibration"
HIDDEN = 4
HANG_LIMIT = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """One judgement: up to gate ``last``; ``expected`` are the gates that must reject it, none for a right one."""

    folder: Path
    contract: str
    last: GateName
    quick: bool
    expected: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    stored: bool = False  # the folder is one of the kernel store's

    @property
    def name(self) -> str:
        """The folder's, and for a stored kernel its contract's too."""
        return f"{self.contract} {self.folder.name[:8]}" if self.stored else self.folder.name

    def read(self) -> Candidate:
        """Raises CandidateFileError, or DamagedEntryError."""
        if self.stored:
            return read_entry(self.folder).candidate
        return read_candidate(self.folder, self.contract, Target.CUDA)

    @property
    def seed(self) -> int:
        return zlib.crc32(self.folder.name.encode())

    @property
    def options(self) -> Options:
        gates = tuple(GateName)[: list(GateName).index(self.last) + 1]
        return Options(
            gates=gates,
            quick=self.quick,
            hidden=1 if self.quick else HIDDEN,
            call_seconds=HANG_LIMIT if self.expected else 10.0,
            timing_seconds=1.0,
            compile_jobs=1,
            budget_seconds=300,
        )


def right_jobs() -> Iterator[Job]:
    for source in sorted((CORPUS / "right").glob("*/kernel.cu")):
        yield Job(source.parent, source.parent.name, GateName.SANITIZER, quick=False)
    for source in sorted((CORPUS / "right_extra").glob("*/kernel.cu")):
        yield Job(source.parent, str(_expectation(source.parent)["contract"]), GateName.SANITIZER, quick=False)


def wrong_jobs() -> Iterator[Job]:
    for path in sorted((CORPUS / "wrong").glob("*/expect.yaml")):
        expected = _expectation(path.parent)
        if expected["target"] != "cuda":
            continue
        gates = _listed(expected["gate"])
        last = max((GateName(g) for g in gates), key=list(GateName).index)
        yield Job(path.parent, expected["contract"], last, True, gates, _listed(expected.get("code")))


def stored_jobs() -> Iterator[Job]:
    """Kernels that were admitted, up to numerics: what was admitted before a check existed must meet it too."""
    for source in sorted((library_root() / "kernels").glob("*/cuda/*/kernel.cu")):
        yield Job(source.parent, source.parents[2].name, GateName.NUMERICS, quick=False, stored=True)


_state: dict[str, Any] = {}


def start(cache: Path, threads: int) -> None:
    """In a process of a pool. By now torch has read what the environment says of threads, so it is told."""
    import torch

    torch.set_num_threads(threads)
    _state["contracts"] = load_library(library_root()).contracts
    _state["cache"] = CompileCache(cache)


def _worker() -> Any:
    from validator.worker import Worker

    if "worker" not in _state:
        _state["worker"] = Worker(Target.CUDA)
    return _state["worker"]


def judge_one(job: Job) -> tuple[Job, Verdict | str, float]:
    """The verdict, or what could not even be read or judged."""
    from validator.judge import judge

    started = time.monotonic()
    try:
        candidate = job.read()
    except (CandidateFileError, DamagedEntryError) as error:
        return job, f"unreadable: {error}", 0.0
    try:
        verdict: Verdict | str = judge(
            candidate,
            _state["contracts"][job.contract],
            options=job.options,
            seed=job.seed,
            worker=_worker(),
            cache=_state["cache"],
        )
    except Exception:
        verdict = traceback.format_exc()
        _state.pop("worker", None)
    return job, verdict, time.monotonic() - started


def compile_one(task: tuple[Job, Shape, DType]) -> str:
    from runtime.kernel import compile_candidate

    job, shape, storage = task
    try:
        contract = _state["contracts"][job.contract]
        compile_candidate(job.read(), contract, shape.dims, storage, cache=_state["cache"])
    except Exception as error:
        return f"{job.name}: {error}"[:300]
    return ""


def time_one(job: Job) -> tuple[Verdict, float]:
    from validator.judge import judge

    started = time.monotonic()
    options = Options(gates=(GateName.PERFORMANCE,), timing_seconds=1.0, budget_seconds=120)
    verdict = judge(
        job.read(),
        _state["contracts"][job.contract],
        options=options,
        seed=job.seed,
        worker=_worker(),
        cache=_state["cache"],
    )
    return verdict, time.monotonic() - started


def _expectation(folder: Path) -> dict[str, Any]:
    document = load_file(folder / "expect.yaml")
    if document.value is None:
        raise ValueError(f"{folder / 'expect.yaml'}: {document.problems}")
    return document.value


def _listed(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(v) for v in value) if isinstance(value, list) else (str(value),)
