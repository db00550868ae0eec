"""Who answers: one provider a pattern, from the one name that a command is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from generator.demo.recording import read_recording
from generator.providers.protocol import Provider, ProviderError
from generator.providers.replay import Replay
from generator.regenerate.tasks import Setup, Task
from generator.run import make_provider
from generator.search import Plan
from kb.store import KernelStore

if TYPE_CHECKING:
    from generator.providers.anthropic import Settings


@dataclass(frozen=True, slots=True)
class Author:
    """A provider and the search it is asked in."""

    provider: Provider
    plan: Plan


class Authors:
    """``anthropic``, ``exchange:FOLDER`` (a folder a search inside it) or ``replay:STORE`` (the recorded replies that
    made the store's fastest kernel of a pattern)."""

    def __init__(self, setup: Setup, settings: Settings | None = None) -> None:
        """Raises ProviderError for a name, key or folder that cannot serve any pattern."""
        self._setup = setup
        self._settings = settings
        self._kind, _, self._place = setup.provider.partition(":")
        if self._kind == "replay" and self._place:
            if not Path(self._place).is_dir():
                raise ProviderError(f"{self._place}: no such folder; replay takes a kernel store with transcripts")
        else:
            make_provider(setup.provider, settings=settings)

    def of(self, task: Task) -> Author:
        """The author of one pattern. Raises ProviderError."""
        assert task.search is not None  # skipped tasks are never asked for
        assert task.work is not None
        contract = task.pattern.contract.id
        if self._kind == "exchange":
            # Named as the search is: a question of another prompt does not take the place of one that waits.
            where = f"exchange:{Path(self._place) / task.work.name}"
            return Author(make_provider(where, wait=self._setup.wait), task.search)
        if self._kind == "replay":
            return self._replayed(contract, task.search)
        return Author(make_provider(self._setup.provider, settings=self._settings), task.search)

    def _replayed(self, contract: str, plan: Plan) -> Author:
        entries = KernelStore(Path(self._place)).admitted(contract, self._setup.target)
        recorded = [e for e in entries if e.transcript()]
        if not recorded:
            raise ProviderError(f"{self._place} has no recorded replies for {contract} on {self._setup.target.value}")
        try:
            recording = read_recording(recorded[0].transcript())
        except (ValueError, KeyError) as error:
            raise ProviderError(f"{recorded[0].folder}: {error}") from None
        # What was recorded is all there is: every round is played, whatever came before it.
        return Author(
            Replay.from_events(recording.replies), replace(plan, rounds=recording.rounds, improve=True, lanes=1)
        )
