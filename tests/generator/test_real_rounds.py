"""Real searches played again: what authors wrote, judged anew, told back to them, until it is admitted.

The replies are those in the shipped store's transcripts. Every gate that gives the same answer on every machine judges
for real; what the clock said is taken from the recording, since no test depends on a time. A CUDA candidate goes up to
the compiler here, and its later gates are the recorded ones too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from generator.demo.recording import narrowed, read_recording
from generator.journal import Journal
from generator.providers.protocol import Ask, Completion
from generator.providers.replay import Replay
from generator.search import Search
from kb.candidate import Candidate
from kb.contract import Contract
from kb.dtype import DType, Target
from kb.library import library_root
from kb.manifest import GateName, Outcome, Verdict
from kb.store import Entry, KernelStore
from runtime.compile_cache import CompileCache
from tests.generator.scripted import LIBRARY
from validator.gates import Options
from validator.judge import judge
from validator.worker import Worker

HERE = {
    Target.CPU: tuple(g for g in GateName if g is not GateName.PERFORMANCE),
    Target.CUDA: (GateName.STATIC, GateName.COMPILE),
}


@dataclass(frozen=True)
class Real:
    """A kernel of the store and how its author's first try ended."""

    digest: str
    stopped_by: GateName
    told: str


SEARCHES = {
    "cpu: a refused name": Real("a6381f63", GateName.STATIC, "dup"),
    "cpu: right and slow": Real("1110cd6a", GateName.PERFORMANCE, "where torch_sdpa takes"),
    "cuda: does not compile": Real("cf6d1ebb", GateName.COMPILE, "considered a host function"),
}


class Hearing:
    """Replies as recorded; keeps what was asked."""

    name = "replay"

    def __init__(self, replies: Replay) -> None:
        self._replies = replies
        self.asked: list[Ask] = []

    def ask(self, question: Ask, on_text: Any = None) -> Completion:
        self.asked.append(question)
        return self._replies.ask(question, on_text)


def _recorded(entry: Entry) -> dict[str, Verdict]:
    attempts = [e for e in entry.transcript() if e["event"] == "attempt" and e["verdict"]]
    verdicts = [Verdict.model_validate(e["verdict"], strict=False) for e in attempts]
    return {v.candidate: v for v in verdicts}


def _judged(candidate: Candidate, contract: Contract, seed: int, recorded: Verdict, worker: Worker | None) -> Verdict:
    """Judged here as far as the answer is every machine's; the rest as it was recorded."""
    options = Options(gates=HERE[candidate.target], quick=True, timing_seconds=0.1)
    verdict = judge(candidate, contract, options=options, seed=seed, worker=worker, cache=CompileCache())
    if verdict.failed_gate is not None:
        return verdict
    gates = tuple(
        then if now.outcome is Outcome.SKIPPED else now for now, then in zip(verdict.gates, recorded.gates, strict=True)
    )
    return verdict.model_copy(update={"gates": gates, "timings": recorded.timings, "accepted": recorded.accepted})


@pytest.fixture(scope="module")
def worker() -> Any:
    with Worker(Target.CPU) as lent:
        yield lent


@pytest.mark.parametrize("name", SEARCHES)
def test_a_real_author_is_told_what_was_wrong_and_is_admitted_in_the_end(
    name: str, tmp_path: Path, worker: Worker
) -> None:
    real = SEARCHES[name]
    entry = KernelStore(library_root() / "kernels").get(real.digest)
    if entry.candidate.target is Target.CUDA:
        pytest.importorskip("cuda.core", reason="compiling for CUDA needs the extra 'nvrtc'")
    recorded = _recorded(entry)
    recording = read_recording(entry.transcript())
    contract = narrowed(LIBRARY.contracts[recording.contract], DType.BFLOAT16, [])
    plan = recording.plan(contract, LIBRARY.principles)
    provider = Hearing(Replay.from_events(recording.replies))
    lent = worker if entry.candidate.target is Target.CPU else None
    with Journal(tmp_path / "journal.jsonl") as journal:
        search = Search(plan, provider, lambda c, seed: _judged(c, contract, seed, recorded[c.digest], lent), journal)
        attempts = search.run().attempts
    first, *_, last = attempts
    assert first.verdict is not None
    assert last.verdict is not None
    assert first.verdict.failed_gate is not None
    assert first.verdict.failed_gate.gate is real.stopped_by
    again = provider.asked[1].history
    assert f"stopped at gate {real.stopped_by}" in again
    assert real.told in again
    assert "stopped at gate" not in provider.asked[0].history
    assert last.verdict.accepted
    assert last.verdict.candidate == entry.digest
    ran = {g.gate: g.outcome for g in last.verdict.gates}
    assert all(ran[gate] is Outcome.PASSED for gate in HERE[entry.candidate.target])
