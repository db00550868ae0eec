"""Doing what the tasks say: judge stored kernels at the model's dims, then search for what is still missing."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from generator.history import Attempt
from generator.journal import Event
from generator.limits import Spent
from generator.providers.protocol import ProviderError
from generator.regenerate.authors import Authors
from generator.regenerate.patterns import Pattern, dims_text
from generator.regenerate.standing import Known, Stand, to_judge, uncovered
from generator.regenerate.tasks import Setup, Task, Todo, known_of
from generator.run import SearchFailedError, play_search
from generator.search import Judge, Plan
from kb.manifest import Verdict
from kb.store import StoreError
from runtime.compile_cache import default_root
from validator.extending import ExtensionError, Trial, extend
from validator.gates import Event as GateEvent
from validator.gates import Options

Tell = Callable[[Event, str], None]
JudgeStored = Callable[[Known, Callable[[GateEvent], None]], Verdict]
JudgeOf = Callable[[Plan], Judge | None]


@dataclass(frozen=True, slots=True)
class Judged:
    """A stored kernel that was judged at dims new to it."""

    known: Known
    accepted: bool
    why: str


@dataclass(slots=True)
class Played:
    """What became of one task. ``waiting``: whose reply is missing; ``failed``: what went wrong, state kept."""

    task: Task
    known: Sequence[Known] = ()
    judged: list[Judged] = field(default_factory=list)
    attempts: Sequence[Attempt] = ()
    admitted: Sequence[str] = ()
    ended: str = ""
    spent: Spent = field(default_factory=Spent)
    waiting: str | None = None
    failed: str | None = None

    @property
    def pattern(self) -> Pattern:
        """The task's pattern."""
        return self.task.pattern

    @property
    def reused(self) -> list[Known]:
        """Kernels that were there before and may run at the model's dims."""
        return [k for k in self.known if k.stand is Stand.ACCEPTED and k.digest not in self.admitted]

    @property
    def covered(self) -> bool:
        """Whether every dims the model needs has a kernel that may run there."""
        return bool(self.pattern.needs) and not uncovered(self.pattern, self.known)


def play(
    tasks: Sequence[Task],
    setup: Setup,
    authors: Authors,
    *,
    jobs: int = 1,
    tell: Tell = lambda _event, _name: None,
    judge_stored: JudgeStored | None = None,
    judge_of: JudgeOf = lambda _: None,
) -> list[Played]:
    """Play every task, ``jobs`` at a time; whoever judges waits for its turn on the device. Nothing that one task does
    stops another. ``judge_stored`` and ``judge_of`` (of a search's plan) default to the validator on this machine."""
    judge = judge_stored or _judge_here(setup)

    def one(task: Task) -> Played:
        return _play(task, setup, authors, tell, judge, judge_of)

    if jobs == 1:
        return [one(task) for task in tasks]
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=jobs)
    try:
        return list(pool.map(one, tasks))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _play(task: Task, setup: Setup, authors: Authors, tell: Tell, judge: JudgeStored, judge_of: JudgeOf) -> Played:
    name = task.pattern.contract.id
    played = Played(task, known=task.known)
    if task.todo in (Todo.SKIP, Todo.NOTHING):
        return played
    try:
        if task.todo is Todo.JUDGE:
            played.judged = _judge_all(task, tell, judge)
            played.known = known_of(task.pattern, setup)
        if task.todo is Todo.RESUME or uncovered(task.pattern, played.known):
            _search(task, setup, authors, tell, judge_of, played)
            played.known = known_of(task.pattern, setup)
    except SearchFailedError as error:
        played.waiting, played.failed = (str(error), None) if error.exit_code == 1 else (None, str(error))
        played.known = known_of(task.pattern, setup)
    except (ProviderError, ExtensionError, StoreError, OSError) as error:
        played.failed = str(error)
    state = played.waiting or played.failed or ("has kernels" if played.covered else played.ended or "no kernel")
    tell({"event": "state", "text": state}, name)
    return played


def _judge_all(task: Task, tell: Tell, judge: JudgeStored) -> list[Judged]:
    judged = []
    name = task.pattern.contract.id
    for known in to_judge(task.known):
        tell({"event": "state", "text": f"judging stored {known.digest[:12]} at {dims_text(known.need.at)}"}, name)

        def on_gate(event: GateEvent, digest: str = known.digest) -> None:
            if event.result is not None:
                told = {"event": "gate", "gate": event.gate.value, "outcome": event.result.outcome.value}
                tell({**told, "key": digest[:12]}, name)

        verdict = judge(known, on_gate)
        judged.append(Judged(known, verdict.accepted, why_of(verdict)))
    return judged


def _search(task: Task, setup: Setup, authors: Authors, tell: Tell, judge_of: JudgeOf, played: Played) -> None:
    assert task.work is not None  # only skipped tasks have none
    name = task.pattern.contract.id
    author = authors.of(task)
    result, admitted = play_search(
        author.plan,
        author.provider,
        work=task.work,
        store=setup.store,
        judge=judge_of(author.plan),
        on_event=lambda event: tell(event, name),
    )
    played.attempts, played.admitted = result.attempts, admitted
    played.ended, played.spent = result.reason, result.spent


def _judge_here(setup: Setup) -> JudgeStored:
    options = Options(turns=default_root() / "turns")

    def judge(known: Known, on_event: Callable[[GateEvent], None]) -> Verdict:
        trial = Trial(known.need.at, known.need.storage)
        contract = setup.library.contracts[known.entry.manifest.contract]
        return extend(known.entry, contract, trial, store=setup.store, options=options, on_event=on_event)

    return judge


def why_of(verdict: Verdict) -> str:
    """A verdict in one line: how fast, or what stopped it."""
    if verdict.accepted:
        return ", ".join(f"{t.ratio:.2f}x {t.baseline}" for t in verdict.timings)
    failed = verdict.failed_gate
    if failed is not None:
        message = " ".join(failed.findings[0].message.split())[:160] if failed.findings else "no diagnostic"
        return f"{failed.gate.value}: {message}"
    skipped = [f"{g.gate.value} ({g.reason})" for g in verdict.gates if g.outcome == "skipped"]
    return f"skipped: {', '.join(skipped) or 'nothing, but the trial was partial'}"
