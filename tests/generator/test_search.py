"""Rounds: what is asked, what is told, when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.admission import admit
from generator.journal import Journal, JournalError
from generator.lanes import draft_dead_end
from generator.limits import Limits
from generator.providers.protocol import PendingError, ProviderError
from generator.providers.replay import Replay
from generator.search import Result, Search
from kb.principle import Principle
from kb.store import KernelStore
from tests.generator.scripted import CONTRACT, Scripted, judge, plan, reply_text


def _run(folder: Path, provider: object, **changes: object) -> tuple[Search, Result]:
    with Journal(folder / "journal.jsonl") as journal:
        search = Search(plan(**changes), provider, judge, journal)  # type: ignore[arg-type]
        return search, search.run()


def test_a_search_ends_with_the_first_accepted_candidate(tmp_path: Path) -> None:
    provider = Scripted({1: [0.0, 0.8, 1.3, 1.5]})
    _, result = _run(tmp_path, provider)
    assert result.reason == "accepted in round 3"
    assert result.best is not None
    assert (result.best.round, result.best.ratio) == (3, 1.3)
    assert len(provider.asked) == 3


def test_improve_plays_every_round_and_keeps_the_best(tmp_path: Path) -> None:
    _, result = _run(tmp_path, Scripted({1: [1.1, 1.4, 1.2, 0.0]}), improve=True)
    assert result.best is not None
    assert (result.best.round, result.best.ratio) == (2, 1.4)
    assert result.reason == "all 4 rounds were played"


def test_diagnostics_of_a_round_reach_the_next_prompt(tmp_path: Path) -> None:
    provider = Scripted({1: ["no parts at all", 0.0, 0.7, 1.2]})
    _run(tmp_path, provider)
    second, third, fourth = (q.history for q in provider.asked[1:])
    assert "no <source> part" in second
    assert "error-too-large" in third
    assert "out[0, 7]" in third
    assert "on outliers inputs" in third
    assert "// 12 ratio=0.0" in third
    assert "0.700 slower" in fourth
    assert "Round 1: the reply could not be used" in fourth


def test_the_prefix_is_the_same_in_every_round_and_lane(tmp_path: Path) -> None:
    provider = Scripted({1: [0.5, 0.6, 0.7, 0.8], 2: [0.5, 0.7, 0.9, 0.95]})
    _run(tmp_path, provider, lanes=2)
    assert len({q.prefix for q in provider.asked}) == 1
    assert len({q.prompt_digest for q in provider.asked}) == len(provider.asked)


def test_a_lane_sees_the_best_of_the_others_with_its_source(tmp_path: Path) -> None:
    provider = Scripted({1: [0.5, 0.5, 0.5, 0.5], 2: [0.9, 0.5, 0.5, 0.5]})
    _run(tmp_path, provider, lanes=2)
    question = next(q for q in provider.asked if q.key == "round-2-lane-1")
    assert "another author's" in question.history
    assert "ratio=0.9" in question.history


def test_a_lane_whose_gap_does_not_close_is_stopped_with_a_drafted_dead_end(tmp_path: Path) -> None:
    _, result = _run(tmp_path, Scripted({1: [0.6, 0.6, 0.605, 0.9]}), rounds=6)
    assert list(result.stopped_lanes) == [0]
    assert "the last two gained under 2 %" in result.reason
    draft = draft_dead_end(
        CONTRACT,
        result.attempts,
        reason=result.stopped_lanes[0],
        record="bench/results/x.md",
        today=result.attempts[0].verdict.judged_at.date(),  # type: ignore[union-attr]
    )
    block = Principle.model_validate(draft)
    assert block.status == "draft"
    assert block.evidence[0].value is not None
    assert "bound by bandwidth" in block.claim


def test_a_limit_stops_asking_but_keeps_what_was_paid(tmp_path: Path) -> None:
    provider = Scripted({1: [0.5, 0.6, 0.7, 0.8]})
    _, result = _run(tmp_path, provider, limits=Limits(tokens=300))
    assert result.reason == "token limit reached: 300 of 300"
    assert len(provider.asked) == 2
    assert result.spent.usd == pytest.approx(0.02)


def test_a_resumed_search_asks_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    script = {1: [0.0, 0.8, 0.9, 1.2]}
    _, whole = _run(tmp_path / "a", Scripted(script))
    first = Scripted({1: [0.0, 0.8]})
    with pytest.raises(IndexError):
        _run(tmp_path / "b", first)
    second = Scripted(script)
    _, resumed = _run(tmp_path / "b", second)
    assert [q.key for q in first.asked][:2] == ["round-1-lane-1", "round-2-lane-1"]
    assert [q.key for q in second.asked] == ["round-3-lane-1", "round-4-lane-1"]
    assert resumed.attempts == whole.attempts


def test_a_reply_that_came_is_kept_when_another_lane_is_still_waiting(tmp_path: Path) -> None:
    class HalfWaiting(Scripted):
        def ask(self, question, on_text=None):
            if question.key.endswith("lane-2") and len(self.asked) < 2:
                self.asked.append(question)
                raise PendingError("not yet")
            return super().ask(question, on_text)

    script = {1: [1.2], 2: [1.1]}
    waiting = HalfWaiting(script)
    with pytest.raises(PendingError):
        _run(tmp_path, waiting, lanes=2)
    after = Scripted(script)
    _, result = _run(tmp_path, after, lanes=2)
    assert [q.key for q in after.asked] == ["round-1-lane-2"]
    assert result.best is not None
    assert result.best.ratio == 1.2


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    _run(tmp_path, Scripted({1: [1.2]}))
    with pytest.raises(JournalError, match="lanes differ"):
        _run(tmp_path, Scripted({1: [1.2], 2: [1.1]}), lanes=2)


def test_an_admitted_kernel_carries_its_transcript_and_the_blocks_its_author_saw(tmp_path: Path) -> None:
    provider = Scripted({1: [0.0, 1.3]})
    search, result = _run(tmp_path, provider)
    assert result.best is not None
    store = KernelStore(tmp_path / "kernels")
    entry = store.get(admit(store, CONTRACT, result.best, search.transcript(result.best)).folder.name)
    origin = entry.manifest.origin
    assert (origin.provider, origin.model, origin.rounds) == ("scripted", "scripted-1", 2)
    assert origin.prompt_digest == provider.asked[1].prompt_digest
    assert origin.principles
    kinds = [e["event"] for e in entry.transcript()]
    assert kinds == ["search", "prefix", "prompt", "reply", "attempt", "prompt", "reply", "attempt"]


def test_a_transcript_replays_to_the_same_kernel(tmp_path: Path) -> None:
    search, result = _run(tmp_path / "a", Scripted({1: [0.0, 1.3]}))
    assert result.best is not None
    replay = Replay.from_events(search.transcript(result.best), strict=True)
    _, again = _run(tmp_path / "b", replay)
    assert again.best is not None
    assert again.best.candidate == result.best.candidate


def test_a_truncated_or_refused_reply_is_told_not_judged(tmp_path: Path) -> None:
    class Cut(Scripted):
        def ask(self, question, on_text=None):
            completion = super().ask(question, on_text)
            return completion.model_copy(update={"stop": "truncated"}) if len(self.asked) == 1 else completion

    provider = Cut({1: [1.5, 1.2]})
    _, result = _run(tmp_path, provider)
    assert result.attempts[0].verdict is None
    assert "cut off at its length limit" in provider.asked[1].history


def test_a_seed_is_shown_in_the_first_round_only(tmp_path: Path) -> None:
    from generator.reply import parse_reply
    from kb.dtype import Target

    seed = parse_reply(reply_text("seed", 1.0), CONTRACT.id, Target.CPU)
    provider = Scripted({1: [0.5, 1.2]})
    _run(tmp_path, provider, seed=seed)
    assert "// seed ratio=1.0" in provider.asked[0].history
    assert "A kernel to start from" not in provider.asked[1].history


def test_a_batch_is_sent_once_and_collected_when_it_is_done(tmp_path: Path) -> None:
    class Batched(Scripted):
        submitted: list[list[str]] = []  # noqa: RUF012
        ready = False

        def submit(self, questions):
            self.submitted.append(sorted(questions))
            self.questions = dict(questions)
            return "b1"

        def collect(self, batch, *, wait=0.0):
            if not self.ready:
                raise PendingError("still running")
            return {k: Scripted.ask(self, q) for k, q in self.questions.items()}

    provider = Batched({1: [1.2], 2: [0.5]})
    with pytest.raises(PendingError):
        _run(tmp_path, provider, lanes=2, batch=True)
    provider.ready = True
    _, result = _run(tmp_path, provider, lanes=2, batch=True)
    assert provider.submitted == [["round-1-lane-1", "round-1-lane-2"]]
    assert result.best is not None
    assert result.best.ratio == 1.2


def test_a_provider_without_batches_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="scripted has no batches"):
        _run(tmp_path, Scripted({1: [1.2]}), batch=True)


def test_principles_that_change_during_a_search_do_not_change_its_questions(tmp_path: Path) -> None:
    whole = Scripted({1: [0.5, 0.6, 0.7, 1.2]})
    _run(tmp_path / "a", whole)
    with pytest.raises(IndexError):
        _run(tmp_path / "b", Scripted({1: [0.5, 0.6]}))
    after = Scripted({1: [0.5, 0.6, 0.7, 1.2]})
    fewer = dict(list(plan().principles.items())[:-30])
    _run(tmp_path / "b", after, principles=fewer)
    assert [q.prompt_digest for q in after.asked] == [q.prompt_digest for q in whole.asked[2:]]
