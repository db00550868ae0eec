"""A search from the outside: what is admitted, and what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.providers.exchange import Exchange
from generator.run import SearchFailedError, make_provider, run_search
from kb.candidate import Candidate
from kb.manifest import GateName, GateResult, Outcome, Verdict
from kb.store import KernelStore
from tests.generator.scripted import judge, plan, reply_text


def answer(folder: Path, key: str, text: str) -> None:
    prompt = (folder / f"{key}.prompt.md").read_text().splitlines()[0].split()[2]
    (folder / f"{key}.reply.md").write_text(f"<!-- reply to {prompt} by a person -->\n{text}<!-- end of reply -->\n")


def run(tmp_path: Path, **changes: object):
    store = KernelStore(tmp_path / "kernels")
    where = f"exchange:{tmp_path / 'x'}"
    return store, run_search(plan(**changes), provider=where, work=tmp_path / "w", store=store, judge=judge, quiet=True)


def test_an_accepted_kernel_is_admitted_while_the_search_still_waits(tmp_path: Path) -> None:
    with pytest.raises(SearchFailedError, match="no reply yet"):
        run(tmp_path, improve=True)
    answer(tmp_path / "x", "round-1-lane-1", reply_text("first", 1.2))
    with pytest.raises(SearchFailedError, match="round-2-lane-1") as caught:
        run(tmp_path, improve=True)
    assert caught.value.exit_code == 1
    (entry,) = KernelStore(tmp_path / "kernels").entries()[0]
    assert (entry.manifest.origin.model, entry.manifest.origin.rounds) == ("a person", 1)


def test_a_whole_search_over_the_exchange_folder_ends_with_its_kernel(tmp_path: Path) -> None:
    for key, ratio in (("round-1-lane-1", 0.0), ("round-2-lane-1", 1.3)):
        with pytest.raises(SearchFailedError):
            run(tmp_path)
        answer(tmp_path / "x", key, reply_text(key, ratio))
    store, (result, admitted) = run(tmp_path)
    assert result.reason == "accepted in round 2"
    assert admitted == [store.entries()[0][0].digest]


def test_a_stopped_lane_leaves_a_draft_that_the_linter_can_read(tmp_path: Path) -> None:
    from kb.library import load_library

    for number, ratio in enumerate((0.6, 0.6, 0.605), start=1):
        with pytest.raises(SearchFailedError):
            run(tmp_path, rounds=5)
        answer(tmp_path / "x", f"round-{number}-lane-1", reply_text(f"r{number}", ratio))
    _, (result, admitted) = run(tmp_path, rounds=5)
    assert admitted == []
    assert result.stopped_lanes
    (draft,) = (tmp_path / "w" / "drafts").glob("*.yaml")
    folder = tmp_path / "library" / "principles" / "gated-mlp"
    folder.mkdir(parents=True)
    (tmp_path / "library" / "contracts").mkdir()
    draft.rename(folder / draft.name)
    assert list(load_library(tmp_path / "library").principles) == [f"gated-mlp/{draft.stem}"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("carrier-pigeon", "unknown provider 'carrier-pigeon'; use anthropic, exchange:FOLDER or replay:FILE"),
        ("exchange", "unknown provider 'exchange'"),
        ("replay:/nonexistent/transcript.jsonl", "not a readable transcript"),
    ],
)
def test_a_provider_that_cannot_be_made_is_one_clear_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SearchFailedError, match=message) as caught:
        run_search(plan(), provider=name, work=tmp_path, store=KernelStore(tmp_path), judge=judge, quiet=True)
    assert caught.value.exit_code == 2


def test_an_exchange_folder_is_made_where_it_was_asked_for(tmp_path: Path) -> None:
    provider = make_provider(f"exchange:{tmp_path / 'deep' / 'x'}", wait=1.5)
    assert isinstance(provider, Exchange)
    assert provider.folder == tmp_path / "deep" / "x"


def test_a_reply_that_cannot_be_judged_here_is_kept_and_judged_where_it_can(tmp_path: Path) -> None:
    def judge_without_a_device(candidate: Candidate, seed: int) -> Verdict:
        compiled = GateResult(gate=GateName.COMPILE, outcome=Outcome.PASSED)
        skipped = GateResult(gate=GateName.NUMERICS, outcome=Outcome.SKIPPED, reason="no NVIDIA GPU")
        return judge(candidate, seed).model_copy(update={"accepted": False, "gates": (compiled, skipped)})

    with pytest.raises(SearchFailedError, match="no reply yet"):
        run(tmp_path)
    answer(tmp_path / "x", "round-1-lane-1", reply_text("first", 1.2))
    store = KernelStore(tmp_path / "kernels")
    with pytest.raises(
        SearchFailedError, match=r"round-1-lane-1: .* did not run: numerics \(no NVIDIA GPU\)"
    ) as caught:
        run_search(
            plan(),
            provider=f"exchange:{tmp_path / 'x'}",
            work=tmp_path / "w",
            store=store,
            judge=judge_without_a_device,
            quiet=True,
        )
    assert caught.value.exit_code == 2
    assert not (tmp_path / "x" / "round-2-lane-1.prompt.md").exists()
    _, (result, admitted) = run(tmp_path)
    assert (result.reason, len(admitted)) == ("accepted in round 1", 1)
