"""What a model needs, what the store has of it, what is asked for, and that nothing is asked for twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from generator.analyze import Match, PatternResult, Skip
from generator.journal import Journal
from generator.providers.protocol import PendingError
from generator.regenerate.begun import begin, end
from generator.regenerate.measuring import BEFORE, LIBRARY_PATH, Bucket, Decoding, StoreAsOf, measure_model
from generator.regenerate.patterns import UnknownPatternError, patterns_of
from generator.regenerate.report import run_data, run_markdown
from generator.regenerate.seen import compared, look
from generator.regenerate.standing import MOST_JUDGED
from generator.regenerate.tasks import Todo
from kb.digest import meaning_digest
from kb.dtype import DType, Target
from kb.library import Library
from kb.manifest import BlockRef
from kb.store import KernelStore
from runtime.engine.choosing import BucketChoice
from runtime.engine.workload import Measured
from tests.generator.regenerate.scripted_model import SPEC, put, run, setup, tasks
from tests.generator.scripted import LIBRARY

UP, DOWN = "gated_mlp_up", "gated_mlp_down"


def test_the_patterns_of_a_decode_step_are_found_and_the_others_skipped_with_reasons() -> None:
    found = {p.contract.id: p for p in patterns_of(SPEC, LIBRARY.contracts, (1, 2), SPEC.dtype)}
    assert [i for i, p in found.items() if p.wanted] == [
        "residual_rmsnorm",
        "attention_prelude",
        "paged_decode_attention",
        "o_proj_residual_rmsnorm",
        "gated_mlp_up",
        "gated_mlp_down",
        "lm_head_argmax",
    ]
    assert [dict(n.at)["num_tokens"] for n in found[UP].needs] == [1, 2]
    assert "part of attention_prelude" in found["rope"].reason
    assert "this model is a decoder" in found["encoder_mlp"].reason
    for pattern in found.values():
        for need in pattern.needs:
            for shape in need.shapes(pattern.contract):
                pattern.contract.check_dims(shape)


def test_named_patterns_are_wanted_whole_and_the_rest_is_not() -> None:
    found = {p.contract.id: p for p in patterns_of(SPEC, LIBRARY.contracts, (1,), SPEC.dtype, ["residual_rmsnorm"])}
    assert [i for i, p in found.items() if p.wanted] == ["residual_rmsnorm"]
    assert [dict(n.at)["has_residual"] for n in found["residual_rmsnorm"].needs] == [0, 1]
    with pytest.raises(UnknownPatternError, match="did you mean gated_mlp_up"):
        patterns_of(SPEC, LIBRARY.contracts, (1,), SPEC.dtype, ["gated_mlp_upp"])


def test_a_model_that_norms_its_outputs_has_no_fused_outputs() -> None:
    spec = replace(SPEC, sandwich_norms=True)
    found = {p.contract.id: p for p in patterns_of(spec, LIBRARY.contracts, (1,), SPEC.dtype)}
    assert "a norm of its own follows it" in found["o_proj_residual_rmsnorm"].reason
    assert "a norm of its own follows it" in found[DOWN].reason
    assert [dict(n.at)["has_residual"] for n in found["residual_rmsnorm"].needs] == [0, 1]


def test_what_the_graph_says_explains_what_is_skipped_and_every_difference_is_noted() -> None:
    found = patterns_of(SPEC, LIBRARY.contracts, (1, 8), SPEC.dtype)
    up = {"num_tokens": 1, "hidden_size": 192, "intermediate_size": 512}
    append = {"num_tokens": 1, "num_kv_heads": 2, "head_dim": 32, "block_size": 64}
    agreeing = [
        PatternResult(UP, (Match((), "layers.0.mlp", up, "bfloat16"),)),
        PatternResult("kv_append", (Match((), "layers.0", append, "bfloat16", ("block_size",)),)),
        PatternResult("encoder_mlp", (), (Skip("layers.0.mlp", "gelu-between: silu is"),)),
    ]
    told, notes = compared(found, agreeing)
    assert notes == []
    assert [p.wanted for p in told] == [p.wanted for p in found]
    (encoder,) = (p for p in told if p.contract.id == "encoder_mlp")
    assert encoder.reason.endswith("in the graph, layers.0.mlp: gelu-between: silu is")
    differing = [
        PatternResult(UP, (Match((), "layers.0.mlp", up | {"intermediate_size": 1024}, "bfloat16"),)),
        PatternResult(DOWN, (), (Skip("", "no product ends in a residual"),)),
        PatternResult("encoder_qkv", (Match((), "layers.1", {}, "bfloat16"),)),
    ]
    _, notes = compared(found, differing)
    assert len(notes) == 3
    assert "intermediate_size=1024 in the graph (layers.0.mlp), which no call" in notes[0]
    assert "not seen in the model's graph: no product ends in a residual" in notes[1]
    assert "is in the graph (layers.1), but the engine's decode step does not call it" in notes[2]


def test_a_graph_that_cannot_be_captured_is_a_note(tmp_path: Path) -> None:
    seen, note = look(tmp_path, LIBRARY.contracts)
    assert seen == ()
    assert note is not None
    assert "config.json: cannot be read" in note


def test_an_interrupted_regeneration_goes_on_where_it_was_and_asks_for_nothing_twice(tmp_path: Path) -> None:
    made, asked = setup(tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        run(made, {UP: [0.0, 0.7, 1.2], DOWN: [KeyboardInterrupt()]}, asked)
    assert asked == [f"{UP} round-{n}-lane-1" for n in (1, 2, 3)]
    assert [t.todo for t in tasks(made)] == [Todo.NOTHING, Todo.RESUME]
    done = run(made, {UP: [], DOWN: [1.1]}, asked)
    assert asked[3:] == [f"{DOWN} round-1-lane-1"]
    assert all(p.covered for p in done)
    assert [t.todo for t in tasks(made)] == [Todo.NOTHING, Todo.NOTHING]
    assert {e.manifest.contract for e in made.store.entries()[0]} == {UP, DOWN}


def test_a_regeneration_that_is_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    made, log = setup(tmp_path, improve=True), tmp_path / "asked"
    scripts: dict[str, list[float | BaseException]] = {UP: [0.0, 1.1, 0.7, 1.2], DOWN: [0.9, 1.3, 0.0, 1.0]}
    for _ in range(9):
        planned = tasks(made)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a child that hangs ends all the same
            try:
                run(made, scripts, _KilledAtTheSecond(log), planned=planned)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    asked = log.read_text().splitlines()
    assert sorted(set(asked)) == sorted(f"{p} round-{n}-lane-1" for p in (UP, DOWN) for n in (1, 2, 3, 4))
    # A reply that was lost with the process before it was journalled is asked for again, and nothing else is.
    assert len(asked) == 8 + 7
    up, down = run(made, {UP: [], DOWN: []}, [])
    assert (up.task.todo, down.task.todo) == (Todo.NOTHING, Todo.NOTHING)
    assert len(made.store.entries()[0]) == 4


class _KilledAtTheSecond(list[str]):
    """A list of questions that is also a file; the process dies while the second question of its life is answered."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def append(self, question: str) -> None:
        super().append(question)
        with self._log.open("a") as file:
            file.write(question + "\n")
        if len(self) == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_search_that_improves_is_finished_although_its_first_kernel_is_in_the_store(tmp_path: Path) -> None:
    made, asked = setup(tmp_path, improve=True), []
    (stopped,) = run(made, {UP: [1.1, PendingError("no reply yet to round 2")]}, asked, names=(UP,))
    assert stopped.waiting == "no reply yet to round 2"
    assert stopped.covered
    (done,) = run(made, {UP: [1.1, 1.3, 1.2, 1.25]}, asked, names=(UP,))
    assert len(asked) == 4
    assert len(done.admitted) == 4
    assert done.spent.usd == pytest.approx(0.04)


def test_what_one_pattern_waits_for_stops_no_other_also_side_by_side(tmp_path: Path) -> None:
    made, asked = setup(tmp_path), []
    scripts: dict[str, list[float | BaseException]] = {UP: [PendingError("no reply yet")], DOWN: [1.1]}
    up, down = run(made, scripts, asked, jobs=2)
    assert (up.waiting, up.covered, down.covered) == ("no reply yet", False, True)


def test_a_stored_kernel_is_judged_at_the_models_dims_and_reused_without_a_word_to_an_author(tmp_path: Path) -> None:
    made, asked, judged = setup(tmp_path), [], []
    entry = put(made, UP)
    (task,) = tasks(made, (UP,))
    assert task.todo is Todo.JUDGE
    (done,) = run(made, {UP: []}, asked, names=(UP,), judged=judged)
    assert (asked, judged, done.covered) == ([], [entry.digest], True)
    assert [k.digest for k in done.reused] == [entry.digest]
    (again,) = run(made, {UP: []}, asked, names=(UP,), judged=judged)
    assert (again.task.todo, len(judged)) == (Todo.NOTHING, 1)


def test_a_kernel_rejected_here_is_not_judged_again_and_a_search_follows(tmp_path: Path) -> None:
    made, asked, judged = setup(tmp_path), [], []
    put(made, UP)
    scripts: dict[str, list[float | BaseException]] = {UP: [0.0, 0.8, 0.7, 0.9]}
    (first,) = run(made, scripts, asked, names=(UP,), stored=lambda _: False, judged=judged)
    assert (len(judged), len(asked), first.covered) == (1, 4, False)
    (again,) = run(made, {UP: []}, asked, names=(UP,), stored=lambda _: False, judged=judged)
    assert (len(judged), len(asked), again.covered) == (1, 4, False)
    assert "rejected at these dims" in again.task.why
    elsewhere = setup(tmp_path, device=replace(made.device, name="another processor"))
    assert tasks(elsewhere, (UP,))[0].todo is Todo.JUDGE


def test_of_many_stored_kernels_the_fastest_few_are_judged(tmp_path: Path) -> None:
    made, judged = setup(tmp_path), []
    for number in range(MOST_JUDGED + 2):
        put(made, UP, number)
        put(made, UP, 100 + number, origin={"authorship": "template"})
    run(made, {UP: []}, [], names=(UP,), judged=judged)
    authorship = [made.store.get(digest).manifest.origin.authorship for digest in judged]
    assert (authorship.count("llm"), authorship.count("template")) == (MOST_JUDGED, 1)


def test_a_search_nobody_has_answered_is_dropped_once_a_stored_kernel_serves(tmp_path: Path) -> None:
    made = setup(tmp_path)
    (waiting,) = run(made, {UP: [PendingError("no reply yet")]}, [], names=(UP,))
    assert waiting.waiting is not None
    put(made, UP)
    assert tasks(made, (UP,))[0].todo is Todo.RESUME
    entry = made.store.entries()[0][0]
    verdict = entry.manifest.verdicts[0]
    (need,) = tasks(made, (UP,))[0].pattern.needs
    errors = (verdict.errors[0].model_copy(update={"dims": dict(need.at)}),)
    update = {"at": dict(need.at), "errors": errors, "judged_at": datetime.now(UTC)}
    made.store.record(entry.digest, verdict.model_copy(update=update))
    assert tasks(made, (UP,))[0].todo is Todo.NOTHING


def test_templates_compete_and_make_no_search_unnecessary(tmp_path: Path) -> None:
    made, asked = setup(tmp_path), []
    put(made, UP, origin={"authorship": "template"})
    (done,) = run(made, {UP: [1.2]}, asked, names=(UP,))
    assert (len(done.judged), len(asked), done.covered) == (1, 1, True)


def test_a_kernel_of_an_older_contract_is_not_reused(tmp_path: Path) -> None:
    made, asked, judged = setup(tmp_path), [], []
    put(made, UP, contract_digest="0" * 64)
    (task,) = tasks(made, (UP,))
    assert task.todo is Todo.SEARCH
    assert "has changed since" in task.why
    (done,) = run(made, {UP: [1.2]}, asked, names=(UP,), judged=judged)
    assert (len(asked), judged, done.covered) == (1, [], True)


def test_stale_renews_what_was_made_from_what_the_library_no_longer_says_and_nothing_else(tmp_path: Path) -> None:
    made, asked = setup(tmp_path, stale=True), []
    block = LIBRARY.principles[next(i for i, p in LIBRARY.principles.items() if UP in p.patterns)]
    told = (BlockRef(id=block.id, version=block.version, digest=meaning_digest(block)),)
    put(made, UP, origin={"principles": told})
    put(made, DOWN)
    assert [(t.todo, t.why) for t in tasks(made)] == [(Todo.NOTHING, "no kernel of it is stale")] * 2
    changed = block.model_copy(update={"claim": "Do the opposite.", "version": block.version + 1})
    library = Library(LIBRARY.root, {**LIBRARY.principles, block.id: changed}, LIBRARY.contracts)
    made = replace(made, library=library)
    up, down = tasks(made)
    assert (up.todo, down.todo) == (Todo.SEARCH, Todo.NOTHING)
    assert f"principle {block.id}: v{block.version} then" in up.why
    run(made, {UP: [1.2], DOWN: []}, asked)
    assert asked == [f"{UP} round-1-lane-1"]
    assert tasks(made)[0].todo is Todo.NOTHING
    assert tasks(replace(made, stale=False))[0].todo is Todo.JUDGE


def test_a_changed_prompt_begins_another_search_and_a_damaged_journal_is_named(tmp_path: Path) -> None:
    made = setup(tmp_path)
    (task,) = tasks(made, (UP,))
    (told,) = tasks(replace(made, bandwidth_gbps=20.0), (UP,))
    assert task.work != told.work
    assert task.work is not None
    Journal(task.work / "journal.jsonl").close()
    (task.work / "journal.jsonl").write_text('{"event": "search"}\nnonsense\n{"event": "reply"}\n')
    (done,) = run(made, {UP: []}, [], names=(UP,))
    assert done.failed is not None
    assert "damaged after byte" in done.failed


def test_before_is_the_store_as_it_was_when_the_regeneration_began(tmp_path: Path) -> None:
    made = setup(tmp_path)
    entry = put(made, UP)
    born = entry.manifest.verdicts[0].judged_at
    began = begin(made.work, now=born + timedelta(seconds=1))
    run(made, {UP: []}, [], names=(UP,))
    before = StoreAsOf(made.store.root, began).admitted(UP, Target.CPU)
    assert [len(e.manifest.verdicts) for e in before] == [1]
    assert [len(e.manifest.verdicts) for e in made.store.admitted(UP, Target.CPU)] == [2]
    assert StoreAsOf(made.store.root, born).admitted(UP, Target.CPU) == []
    assert begin(made.work, now=datetime(2030, 1, 1, tzinfo=UTC)) == began
    end(made.work)
    assert begin(made.work, now=datetime(2030, 1, 1, tzinfo=UTC)).year == 2030


def test_the_report_says_what_runs_why_how_fast_and_what_it_cost(tmp_path: Path) -> None:
    made = setup(tmp_path)
    put(made, DOWN)
    begun = datetime.now(UTC) - timedelta(seconds=5)
    played = run(made, {UP: [0.0, 1.2], DOWN: []}, [])
    choice = BucketChoice(1, 64, 120.0, 100.0, ())
    speeds = {name: Measured(ms, 1000 / ms, ()) for name, ms in ((LIBRARY_PATH, 3.0), (BEFORE, 2.0), ("now", 1.5))}
    data = run_data(made, played, [Bucket(1, choice, speeds)], ["a note"], begun=begun, seconds=12.3)
    assert data["cost"]["replies"] == 2
    assert data["cost"]["usd"] == pytest.approx(0.02)
    assert [s["speed_up"] for s in data["speeds"]] == [1.0, 1.5, 2.0]
    text = run_markdown(data | {"sites": [_row("library"), _row("kernel 0123|")]})
    assert "round 2, 1.20x the strongest baseline" in text
    assert "stored, accepted at these dims" in text
    assert "1 of 1 judgements of stored kernels at dims new to them accepted." in text
    assert "kernel 0123\\|" in text
    assert "| 1 | before | 2.000 | 500.0 | 1.50x |" in text
    assert "2 replies, 300 tokens, 0.02 USD; this run took 12 s." in text
    later = run_data(made, run(made, {UP: [], DOWN: []}, []), [], [], begun=begun, seconds=1.0)
    how = {k["pattern"]: k["how"] for p in later["patterns"] for k in p["kernels"]}
    assert how == {UP: "admitted in an earlier run", DOWN: "stored, accepted at these dims in an earlier run"}


def _row(candidate: str) -> dict[str, object]:
    return {
        "bucket": 1,
        "operation": UP,
        "candidate": candidate,
        "step_us": 10.0,
        "chosen": candidate == "library",
        "why": "fastest step",
    }


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take seconds for nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_model_is_measured_on_the_library_path_and_as_chosen(tmp_path: Path) -> None:
    made = setup(tmp_path, store=KernelStore(tmp_path / "none"))
    (bucket,) = measure_model(made, datetime.now(UTC), Decoding(4, 4, 1), selections=tmp_path / "selection")
    assert bucket.size == 1
    assert set(bucket.speeds) == {LIBRARY_PATH, "now"}
    assert {s.site.storage for s in bucket.choice.sites} == {DType.BFLOAT16}
