"""What is to be done for a model: one task a pattern, known before anything is judged or anybody is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from generator.journal import Event
from generator.limits import Limits
from generator.prompt import Prompt
from generator.regenerate.patterns import Need, Pattern
from generator.regenerate.standing import Known, Stand, known_kernels, to_judge, uncovered
from generator.render import Request, render
from generator.search import Plan
from kb.dtype import Target
from kb.library import Library
from kb.store import KernelStore
from runtime.device import DeviceInfo
from runtime.engine.step_sites import features_of
from runtime.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Setup:
    """What a regeneration is of, with what, and within which bounds. ``provider``: its name, as the command has it."""

    model_dir: Path
    spec: DecoderSpec
    library: Library
    store: KernelStore
    target: Target
    device: DeviceInfo
    work: Path
    provider: str
    buckets: tuple[int, ...] = (1,)
    stale: bool = False
    rounds: int | None = None
    lanes: int = 1
    improve: bool = False
    limits: Limits = field(default_factory=Limits)
    bandwidth_gbps: float | None = None
    batch: bool = False
    wait: float = 0.0


class Todo(StrEnum):
    """What a pattern needs. ``resume``: a search of an earlier run that has not ended."""

    NOTHING = "nothing"
    JUDGE = "judge"
    SEARCH = "search"
    RESUME = "resume"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Task:
    """One pattern's plan. ``prompt`` and ``search``: what an author would be asked; None for what is skipped."""

    pattern: Pattern
    known: tuple[Known, ...] = ()
    todo: Todo = Todo.SKIP
    why: str = ""
    prompt: Prompt | None = None
    search: Plan | None = None
    work: Path | None = None

    @property
    def open_needs(self) -> list[Need]:
        """Dims at which no kernel of the store may run yet."""
        return uncovered(self.pattern, self.known)


def tasks_of(patterns: Sequence[Pattern], setup: Setup) -> list[Task]:
    """One task a pattern, in their order. Raises RenderError."""
    return [_task(pattern, setup) for pattern in patterns]


def _task(pattern: Pattern, setup: Setup) -> Task:
    if not pattern.wanted:
        return Task(pattern, why=pattern.reason)
    known = known_of(pattern, setup)
    search = _search(pattern, setup)
    prompt = render(search.contract, search.principles, search.request)
    work = setup.work / "searches" / f"{pattern.contract.id}-{_identity(prompt, setup)}"
    task = Task(pattern, tuple(known), Todo.NOTHING, "", prompt, search, work)
    todo, why = _todo(task, setup)
    return Task(pattern, task.known, todo, why, prompt, search, work)


def known_of(pattern: Pattern, setup: Setup) -> list[Known]:
    """The store's kernels for a pattern as they stand now."""
    return known_kernels(
        pattern, setup.library, setup.store, setup.target, stale=setup.stale, hardware=setup.device.name
    )


def _todo(task: Task, setup: Setup) -> tuple[Todo, str]:
    assert task.work is not None  # only wanted patterns get here
    if is_unfinished(task.work, needed=bool(task.open_needs)):
        return Todo.RESUME, "an earlier search has not ended"
    stale = {k.digest: k.why for k in task.known if k.stand is Stand.STALE}
    if setup.stale and not stale:
        return Todo.NOTHING, "no kernel of it is stale" if task.known else "no kernel of it to renew"
    waiting = to_judge(task.known)
    if not task.open_needs and not waiting:
        return Todo.NOTHING, "every site has a kernel that was judged there"
    if waiting:
        count = len({k.digest for k in waiting})
        return Todo.JUDGE, f"{count} stored {'kernel' if count == 1 else 'kernels'} to be judged at these dims first"
    if stale:
        return Todo.SEARCH, "; ".join(stale.values())
    rejected = len({k.digest for k in task.known if k.stand is Stand.REJECTED})
    return Todo.SEARCH, f"{rejected} stored kernels were rejected at these dims" if rejected else "no kernel yet"


def _search(pattern: Pattern, setup: Setup) -> Plan:
    """All needs of the pattern, covered or not: the prompt must not change while the store fills."""
    request = Request(
        target=setup.target,
        arch=setup.device.arch,
        dims=tuple(shape for need in pattern.needs for shape in need.shapes(pattern.contract)),
        dtype=pattern.needs[0].storage,
        features=features_of(setup.spec),
        bandwidth_gbps=setup.bandwidth_gbps,
    )
    return Plan(
        contract=pattern.contract,
        principles=setup.library.principles,
        request=request,
        rounds=setup.rounds or pattern.contract.rounds,
        lanes=setup.lanes,
        improve=setup.improve,
        limits=setup.limits,
        batch=setup.batch,
        wait=setup.wait,
    )


def _identity(prompt: Prompt, setup: Setup) -> str:
    """A search belongs to its prompt, so what changes the prompt starts another; kills and more rounds do not."""
    kind = setup.provider.partition(":")[0]
    parts = (prompt.manifest.prompt_digest, kind, str(setup.lanes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def is_unfinished(work: Path, *, needed: bool) -> bool:
    """Whether a search was begun in ``work``, has not ended, and is worth going on with: it is still ``needed``, or a
    reply was paid for already."""
    events = events_of(work)
    kinds = {e["event"] for e in events}
    return bool(events) and "ended" not in kinds and (needed or "reply" in kinds)


def events_of(work: Path) -> list[Event]:
    """A search's journal as far as it can be read; opening it for a search says what is wrong with the rest."""
    try:
        text = (work / "journal.jsonl").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    events = []
    for line in text.splitlines(keepends=True):
        try:
            event = json.loads(line) if line.endswith("\n") else None
        except ValueError:
            break
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events
