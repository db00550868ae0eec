"""A search that is killed at random points ends as if it had not been, and pays for no reply twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from generator.admission import admit
from generator.journal import Journal
from generator.search import Search
from kb.store import KernelStore
from tests.generator.scripted import CONTRACT, Scripted, judge, plan

SCRIPT: dict[int, list[float | str]] = {
    1: ["not a reply", 0.0, 0.7, 0.9, 1.1, 1.2],
    2: [0.0, 0.8, 0.95, 1.05, "cut", 1.3],
}


def _whole_search(folder: Path, log: Path | None = None) -> None:
    with Journal(folder / "journal.jsonl") as journal:
        search = Search(plan(lanes=2, rounds=6, improve=True), Scripted(SCRIPT, log), judge, journal)
        result = search.run()
        store = KernelStore(folder / "kernels")
        for attempt in result.attempts:
            if attempt.verdict is not None and attempt.verdict.accepted:
                admit(store, CONTRACT, attempt, search.transcript(attempt))


def _files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.glob("*/*/*/*")) if p.is_file()}


def test_fifty_kills_at_random_points_change_nothing_and_repeat_no_question(tmp_path: Path) -> None:
    _whole_search(tmp_path / "whole")
    expected = _files(tmp_path / "whole" / "kernels")
    assert len(expected) >= 9
    chance = random.Random(11)
    kills, run, log = 0, 0, tmp_path / "asked"
    while kills < 50:
        folder = tmp_path / f"killed-{run}"
        run += 1
        log.unlink(missing_ok=True)
        finished = False
        while not finished:
            child = os.fork()
            if child == 0:
                _whole_search(folder, log)
                os._exit(0)
            time.sleep(chance.uniform(0.005, 0.08))
            if kills < 50:
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            finished = os.WIFEXITED(status)
            kills += not finished
        assert _files(folder / "kernels") == expected
        with Journal(folder / "journal.jsonl") as journal:
            replies = [e["key"] for e in journal.events if e["event"] == "reply"]
        assert len(replies) == len(set(replies)) == 12
        # A kill between asking and journalling the answer is the one moment that cannot be told from no answer.
        asked = log.read_text().split()
        assert len(asked) - len(set(asked)) <= 2 * (kills if run == 1 else 50)
        assert set(asked) == set(replies)
