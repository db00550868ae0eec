"""The demonstration's parts; the judge is made up, the transcripts, search, store and engine are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from generator.demo.__main__ import MODEL, main
from generator.demo.decoding import decode, first_difference, kernel_rows, open_tiny, parting_of, speed_rows
from generator.demo.recording import narrowed, outcome, read_recording
from generator.demo.replaying import demonstration, shipped
from generator.journal import Journal
from generator.providers.protocol import Completion
from generator.providers.replay import Replay
from generator.search import Search
from kb.candidate import Candidate
from kb.digest import meaning_digest
from kb.dtype import DType, Target
from kb.library import library_root
from kb.manifest import Verdict
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice, SiteChoice, Trial
from runtime.engine.workload import Measured
from runtime.sites import Site
from tests.generator.scripted import CONTRACT, LIBRARY, judge, plan, reply_text

DIMS = {"num_tokens": 1, "hidden_size": 1024, "intermediate_size": 3072}
TINY = {"num_tokens": 1, "hidden_size": 192, "intermediate_size": 512}


def _events(*texts: str, lane: int = 0) -> list[dict[str, Any]]:
    opening = {"event": "search", "key": "search", "contract": CONTRACT.id, "target": "cpu", "arch": "x86_64"}
    replies = [
        {
            "event": "reply",
            "key": f"round-{n}-lane-{lane + 1}",
            "lane": lane,
            "prompt_digest": "0" * 64,
            "completion": Completion(text=text, model="scripted-1").model_dump(mode="json"),
        }
        for n, text in enumerate(texts, 1)
    ]
    return [opening | {"dtype": "bfloat16", "dims": [DIMS], "lanes": 2}, *replies]


def test_a_recording_is_played_as_one_lane_whichever_it_was() -> None:
    recording = read_recording(_events("a", "b", lane=1))
    assert [r["key"] for r in recording.replies] == ["round-1-lane-1", "round-2-lane-1"]
    plan = recording.plan(CONTRACT, LIBRARY.principles)
    assert (plan.rounds, plan.lanes, plan.request.dims, plan.request.dtype) == (2, 1, (DIMS,), DType.BFLOAT16)


@pytest.mark.parametrize("events", [[], _events(), _events("a")[1:]])
def test_a_transcript_without_search_or_reply_is_refused(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="no search with replies"):
        read_recording(events)


def test_a_narrowed_contract_asks_for_the_models_shape_and_one_type_and_is_another_contract() -> None:
    trial = narrowed(CONTRACT, DType.BFLOAT16, [TINY])
    assert trial.dtypes.storage == (DType.BFLOAT16,)
    assert [dict(s) for s in trial.sweep.correctness] == [*map(dict, CONTRACT.sweep.correctness), TINY]
    assert meaning_digest(trial) != meaning_digest(CONTRACT)
    assert narrowed(trial, DType.BFLOAT16, [TINY]).sweep == trial.sweep
    with pytest.raises(ValueError, match="hidden_size"):
        narrowed(CONTRACT, DType.BFLOAT16, [TINY | {"hidden_size": 3}])


def test_every_recorded_round_is_told_in_one_line_and_what_is_accepted_is_in_the_store(tmp_path: Path) -> None:
    texts = ("no parts", reply_text("wrong", 0.0), reply_text("slow", 0.7), reply_text("a", 1.2))
    with Journal(tmp_path / "journal.jsonl") as journal:
        search = Search(plan(improve=True), Replay.from_events(_events(*texts)), judge, journal)
        attempts = search.run().attempts
    first, second, third, fourth = map(outcome, attempts)
    assert first.startswith("unusable reply: ")
    assert second == "rejected by numerics: error 0.5, allowed 0.01"
    assert third == "rejected by performance: no diagnostic"
    assert fourth == "accepted; 1.20x torch_eager at 1x4096x12288"


def test_the_shipped_store_has_kernels_to_replay_whose_transcripts_can_be_read() -> None:
    entries = shipped(KernelStore(library_root() / "kernels"))
    assert len(entries) >= 2
    for contract, entry in entries.items():
        recording = read_recording(entry.transcript())
        assert recording.contract == entry.manifest.contract == contract
        assert json.dumps(entry.source[:200])[1:-1] in json.dumps(recording.replies[-1])


def test_the_tiny_model_is_regenerated_from_recorded_replies_by_the_commands_own_steps(tmp_path: Path) -> None:
    root = library_root()
    made = demonstration(root, root / MODEL, tmp_path, 2)
    assert len(made.tasks) == 2
    heard: list[str] = []
    for task in made.tasks:
        contract = task.pattern.contract
        assert contract.dtypes.storage == (DType.BFLOAT16,)
        for need in task.pattern.needs:
            for shape in need.shapes(contract):
                assert dict(shape) in [dict(s) for s in contract.sweep.correctness]
        played = made.play(task, lambda event, _: heard.append(str(event["event"])), lambda _: _accepting)
        assert played.failed is None
        assert len(played.admitted) >= 1
        entries = made.setup.store.admitted(contract.id, Target.CPU)
        assert {e.digest for e in entries} == set(played.admitted)
        assert entries[0].manifest.contract_digest == meaning_digest(contract)
    assert {"prompt", "reply", "attempt", "admitted"} <= set(heard)


def _accepting(candidate: Candidate, seed: int) -> Verdict:
    verdict = judge(candidate.model_copy(update={"source": "// ratio=1.2 "}), seed)
    return verdict.model_copy(update={"candidate": candidate.digest})


def test_without_accepted_kernels_both_paths_are_the_librarys_and_say_the_same(tmp_path: Path) -> None:
    root = library_root()
    result = decode(root / MODEL, root, KernelStore(tmp_path / "kernels"), tmp_path / "choices", tokens=4, rounds=1)
    assert result.parting is None
    assert kernel_rows(result.choices) == []
    assert len(set(result.texts.values())) == 1
    assert list(result.measured) == ["library path", "chosen kernels"]


def test_a_kernels_gain_is_that_over_the_step_with_the_library_at_its_site() -> None:
    site = Site("gated_mlp_up", (("num_tokens", 1),), DType.BFLOAT16)
    trials = (Trial("library", None, 120.0, 120.0), Trial("kernel 0123", "0123", 100.0, 100.0), Trial("k", "4567"))
    (first, second) = kernel_rows([BucketChoice(1, 8, 120.0, 100.0, (SiteChoice(site, "k", "0123", trials),))])
    assert (first["digest"], first["gain"]) == ("0123", 1.2)
    assert (second["digest"], second["gain"]) == ("4567", None)


def test_speed_is_told_against_the_first_path() -> None:
    rows = speed_rows({"library path": Measured(2.0, 480.0, ()), "chosen kernels": Measured(1.6, 600.0, ())})
    assert rows == [("library path", "2.000", "480", "1.00x"), ("chosen kernels", "1.600", "600", "1.25x")]


def test_paths_part_at_their_first_different_token() -> None:
    assert first_difference([1, 2, 3], [1, 2, 4]) == 2
    assert first_difference([1, 2], [1, 2]) is None


def test_where_paths_part_the_library_says_how_close_the_choice_was() -> None:
    with open_tiny(library_root() / MODEL) as engine:
        prompt, same = [84, 104], [101]
        parting = parting_of(engine, prompt, [*same, 32], [*same, 114])
        assert parting is not None
        assert parting.position == 1
        assert parting.gap is None or parting.gap > 0
        assert parting_of(engine, prompt, same, same) is None


def test_a_library_without_the_model_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_LIBRARY", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"demo: {tmp_path}")
    assert captured.err.count("\n") == 1


def test_an_interruption_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr("generator.demo.__main__._demonstrate", interrupted)
    assert main() == 130
    assert capsys.readouterr().err == "demo: stopped\n"
