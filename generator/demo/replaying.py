"""Recorded searches through the real pipeline: replies parsed, kernels judged on this machine and admitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from generator.admission import admit
from generator.demo.recording import Recording, narrowed
from generator.history import Attempt
from generator.journal import Event, Journal
from generator.providers.replay import Replay
from generator.search import Judge, Search
from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.manifest import Verdict
from kb.principle import Principle
from kb.store import Entry, KernelStore

Tell = Callable[[str], None]

STORAGE = DType.BFLOAT16
# Enough for a close interval on a quiet machine; an admission to the shipped store takes four times as long.
TIMING_SECONDS = 1.0
HIDDEN_SHAPES = 1


def shipped(store: KernelStore, most: int) -> tuple[list[Entry], int]:
    """The fastest admitted CPU kernel of each of the first ``most`` contracts, and how many kernels are left out."""
    entries = [e for e in store.entries(target=Target.CPU)[0] if e.manifest.status == "admitted"]
    first: dict[str, Entry] = {}
    for entry in entries:
        if entry.transcript():
            first.setdefault(entry.manifest.contract, entry)
    chosen = list(first.values())[:most]
    return chosen, len(entries) - len(chosen)


def replay(
    recording: Recording,
    contract: Contract,
    principles: Mapping[str, Principle],
    judge: Judge,
    *,
    trial: Contract,
    work: Path,
    store: KernelStore,
    on_event: Callable[[Event], None] = lambda _: None,
) -> tuple[Attempt, ...]:
    """Play ``recording`` in the empty folder ``work`` and admit to ``store`` what ``judge`` accepts.

    ``contract`` is what the author is asked for, ``trial`` what the candidates were judged by. Raises ProviderError,
    JournalError, RenderError, StoreError, OSError.
    """
    provider = Replay.from_events(recording.replies)
    with Journal(work / "journal.jsonl") as journal:
        search = Search(recording.plan(contract, principles), provider, judge, journal, on_event=on_event)
        attempts = search.run().attempts
        for attempt in attempts:
            if attempt.verdict is not None and attempt.verdict.accepted:
                admit(store, trial, attempt, search.transcript(attempt))
    return attempts


def trial_of(contract: Contract, recording: Recording, shapes: Sequence[Mapping[str, int]]) -> Contract:
    """What the demonstration judges by: one storage type, and the shapes of the model that is run afterwards."""
    return narrowed(contract, STORAGE, whole_shapes(recording, shapes))


def whole_shapes(recording: Recording, shapes: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """``shapes`` with the dims that they leave open (those known at run time only) as the search had them."""
    rest = dict(recording.request.dims[0]) if recording.request.dims else {}
    return [rest | dict(shape) for shape in shapes]


def judge_for(trial: Contract, timed: Sequence[Mapping[str, int]], tell: Tell) -> Judge:
    """All gates on this machine, by ``trial``; timed at ``timed``. ``tell`` is told of progress."""
    from validator.gates import Event as GateEvent
    from validator.gates import Options
    from validator.judge import judge

    options = Options(timed=tuple(timed), hidden=HIDDEN_SHAPES, timing_seconds=TIMING_SECONDS)

    def judge_candidate(candidate: Candidate, seed: int) -> Verdict:
        def on_event(event: GateEvent) -> None:
            if event.result is None:
                tell(f"gate {event.gate.value} {event.message}".rstrip())

        return judge(candidate, trial, options=options, seed=seed, on_event=on_event)

    return judge_candidate
