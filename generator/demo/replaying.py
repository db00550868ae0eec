"""The shipped model's regeneration from recorded replies: the command's own steps, judged by less than an admission.

Replies are parsed, kernels judged on this machine and admitted to a store of the occasion, all by what
``agentcompile regenerate`` runs. Only the contracts are narrowed, to one storage type, so that it takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from generator.demo.recording import Recording, narrowed, read_recording
from generator.regenerate.authors import Authors
from generator.regenerate.patterns import Pattern, patterns_of
from generator.regenerate.playing import Played, Tell, play
from generator.regenerate.tasks import Setup, Task, tasks_of
from generator.search import Judge, Plan
from kb.candidate import Candidate
from kb.contract import Contract, DimKind
from kb.dtype import DType, Target
from kb.library import load_library
from kb.manifest import Verdict
from kb.store import Entry, KernelStore
from runtime.device import cpu_device
from runtime.models.spec import read_spec

STORAGE = DType.BFLOAT16
# Enough for a close interval on a quiet machine; an admission to the shipped store takes four times as long.
TIMING_SECONDS = 1.0
HIDDEN_SHAPES = 1

JudgeOf = Callable[[Plan], Judge | None]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What is played: a setup, all patterns of the model, a task for each that has a recording, and the recordings."""

    setup: Setup
    patterns: tuple[Pattern, ...]
    tasks: tuple[Task, ...]
    recordings: Mapping[str, Recording]

    def play(self, task: Task, tell: Tell, judge_of: JudgeOf | None = None) -> Played:
        """Play one task. ``judge_of`` defaults to all gates on this machine."""
        authors = Authors(self.setup)
        (played,) = play([task], self.setup, authors, tell=tell, judge_of=judge_of or self._judge_of)
        return played

    def _judge_of(self, plan: Plan) -> Judge:
        recording = self.recordings[plan.contract.id]
        return judge_for(plan.contract, [*recording.request.dims, *plan.request.dims])


def demonstration(root: Path, model: Path, folder: Path, most: int) -> Demonstration:
    """The regeneration of ``model`` with the library at ``root``, for those ``most`` patterns with recorded CPU replies
    that move most weights in a step. Everything it makes goes into ``folder``. Raises ModelError, RenderError and
    ValueError for a recording that cannot be read."""
    spec, library = read_spec(model), load_library(root)
    recorded = shipped(KernelStore(root / "kernels"))
    patterns = patterns_of(spec, library.contracts, (1,), STORAGE)
    # What depends on the length of a context is judged at long ones, which takes minutes.
    quick = [p for p in patterns if not p.contract.dims_of(DimKind.WORKLOAD)]
    playable = [p for p in quick if p.wanted and p.contract.id in recorded]
    chosen = sorted(playable, key=bytes_moved, reverse=True)[:most]
    contracts = {p.contract.id: trial_of(p) for p in chosen}
    setup = Setup(
        model_dir=model,
        spec=spec,
        library=replace(library, contracts={**library.contracts, **contracts}),
        store=KernelStore(folder / "kernels"),
        target=Target.CPU,
        device=cpu_device(),
        work=folder / "work",
        provider=f"replay:{root / 'kernels'}",
    )
    tasks = tasks_of([replace(p, contract=contracts[p.contract.id]) for p in chosen], setup)
    recordings = {p.contract.id: read_recording(recorded[p.contract.id].transcript()) for p in chosen}
    return Demonstration(setup, tuple(patterns), tuple(tasks), recordings)


def shipped(store: KernelStore) -> dict[str, Entry]:
    """The fastest admitted CPU kernel with recorded replies of each contract."""
    found: dict[str, Entry] = {}
    for entry in store.entries(target=Target.CPU)[0]:
        if entry.manifest.status == "admitted" and entry.transcript():
            found.setdefault(entry.manifest.contract, entry)
    return found


def bytes_moved(pattern: Pattern) -> int:
    """Bytes that a step moves in all calls of the pattern, at the least."""
    contract = pattern.contract
    return sum(n.calls * contract.bytes_moved(n.shapes(contract)[0], n.storage) for n in pattern.needs)


def trial_of(pattern: Pattern) -> Contract:
    """What the demonstration judges by: one storage type, and the model's shapes among those that must be right."""
    shapes = [dict(shape) for need in pattern.needs for shape in need.shapes(pattern.contract)]
    return narrowed(pattern.contract, STORAGE, shapes)


def judge_for(trial: Contract, timed: Sequence[Mapping[str, int]]) -> Judge:
    """All gates on this machine, by ``trial``; timed at ``timed``."""
    from validator.gates import Options
    from validator.judge import judge

    options = Options(timed=tuple(timed), hidden=HIDDEN_SHAPES, timing_seconds=TIMING_SECONDS)

    def judge_candidate(candidate: Candidate, seed: int) -> Verdict:
        return judge(candidate, trial, options=options, seed=seed)

    return judge_candidate
