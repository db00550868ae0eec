"""One search from the outside: provider by name, judge, journal, live view, admission and drafts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from generator.admission import admit
from generator.journal import Event, Journal, JournalError
from generator.lanes import draft_dead_end
from generator.live import LiveView
from generator.providers.exchange import Exchange
from generator.providers.protocol import PendingError, Provider, ProviderError
from generator.providers.replay import Replay
from generator.render import RenderError
from generator.search import Judge, Plan, Result, Search, UndecidedError
from kb.candidate import Candidate
from kb.manifest import Verdict
from kb.store import KernelStore, StoreError
from kb.store.durable import replace_file
from kb.yaml.write import dump_yaml

if TYPE_CHECKING:
    from generator.providers.anthropic import Settings


class SearchFailedError(Exception):
    """A search that could not go on; its state is kept. ``exit_code`` is the command's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def make_provider(name: str, *, settings: Settings | None = None, wait: float = 0.0) -> Provider:
    """``anthropic``, ``exchange:FOLDER`` or ``replay:FILE``. Raises ProviderError."""
    kind, _, place = name.partition(":")
    if kind == "exchange" and place:
        return Exchange(Path(place), wait=wait)
    if kind == "replay" and place:
        return Replay.from_file(Path(place))
    if kind == "anthropic" and not place:
        from generator.providers.anthropic import Anthropic

        return Anthropic.from_environment(settings)
    raise ProviderError(f"unknown provider '{name}'; use anthropic, exchange:FOLDER or replay:FILE")


def run_search(
    plan: Plan,
    *,
    provider: str,
    work: Path,
    store: KernelStore,
    judge: Judge | None = None,
    settings: Settings | None = None,
    wait: float = 0.0,
    quiet: bool = False,
) -> tuple[Result, list[str]]:
    """Play a search to its end, shown live, and admit what was accepted. Raises SearchFailedError."""
    try:
        source = make_provider(provider, settings=settings, wait=wait)
    except ProviderError as error:
        raise SearchFailedError(str(error), 2) from None
    with LiveView(quiet=quiet) as view:
        return play_search(plan, source, work=work, store=store, judge=judge, on_event=view.on_event)


def play_search(
    plan: Plan,
    provider: Provider,
    *,
    work: Path,
    store: KernelStore,
    judge: Judge | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
) -> tuple[Result, list[str]]:
    """Play a search to its end and admit what was accepted. Raises SearchFailedError with all state kept."""
    try:
        with Journal(work / "journal.jsonl") as journal:
            search = Search(plan, provider, judge or _machine_judge(plan, on_event), journal, on_event=on_event)
            try:
                result = search.run()
                _write_drafts(plan, result, work)
            finally:  # what was accepted is in the store whether the search ends, waits or is interrupted
                admitted = _admit_accepted(search, store, on_event)
            return result, admitted
    except PendingError as error:
        raise SearchFailedError(str(error), 1) from None
    except (ProviderError, RenderError, JournalError, StoreError, UndecidedError) as error:
        raise SearchFailedError(str(error), 2) from None
    except OSError as error:
        raise SearchFailedError(f"{error.filename or work}: {error.strerror}", 2) from None


def _machine_judge(plan: Plan, on_event: Callable[[Event], None]) -> Judge:
    def judge(candidate: Candidate, seed: int) -> Verdict:
        # Imported with the first candidate: prompts can be written on a machine that could not judge.
        from generator.judging import judge_here

        return judge_here(plan, candidate, seed, on_event=on_event)

    return judge


def _admit_accepted(search: Search, store: KernelStore, on_event: Callable[[Event], None]) -> list[str]:
    admitted = []
    for attempt in sorted(search.recorded(), key=lambda a: a.rank, reverse=True):
        if attempt.verdict is None or not attempt.verdict.accepted or attempt.candidate is None:
            continue
        if attempt.candidate.digest not in admitted:
            admission = admit(store, search.plan.contract, attempt, search.transcript(attempt))
            admitted.append(attempt.candidate.digest)
            on_event({"event": "admitted", "digest": attempt.candidate.digest, "folder": str(admission.folder)})
    return admitted


def _write_drafts(plan: Plan, result: Result, work: Path) -> None:
    for lane, reason in result.stopped_lanes.items():
        attempts = [a for a in result.attempts if a.lane == lane]
        today = max(a.verdict.judged_at for a in attempts if a.verdict).astimezone(UTC).date()
        draft = draft_dead_end(plan.contract, attempts, reason=reason, record=str(work / "journal.jsonl"), today=today)
        folder = work / "drafts"
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{draft['id'].rsplit('/', 1)[1]}.yaml", dump_yaml(draft).encode())
