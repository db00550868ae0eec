"""What a prompt is told can be narrowed, and the ablation's searches and record."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ablation import ARMS, outcomes, plan_of, record, searches
from generator.journal import Journal, JournalError
from generator.render import Request, render
from generator.run import SearchFailedError, run_search
from generator.search import Search
from generator.selection import Blocks
from kb.dtype import DType, Target
from kb.principle import Kind
from kb.store import KernelStore
from tests.generator.scripted import CONTRACT, LIBRARY, Scripted, judge, plan, reply_text

REQUEST = Request(Target.CPU, "x86_64", dtype=DType.BFLOAT16)


@pytest.mark.parametrize(
    ("blocks", "kinds"),
    [
        (Blocks.NONE, {Kind.MANDATE}),
        (Blocks.DECISIONS, {Kind.MANDATE, Kind.DECISION}),
        (Blocks.ALL, set(Kind)),
    ],
)
def test_every_contract_renders_with_less_and_mandates_stay(blocks: Blocks, kinds: set[Kind]) -> None:
    for contract in LIBRARY.contracts.values():
        prompt = render(contract, LIBRARY.principles, Request(Target.CPU, "x86_64", kinds=blocks.kinds))
        told = {LIBRARY.principles[b.id].kind for b in prompt.manifest.blocks}
        assert Kind.MANDATE in told
        assert told <= kinds
        assert ("# Dead ends" in prompt.text) == (Kind.DEAD_END in told)


def test_a_journal_of_an_arm_is_not_continued_by_another(tmp_path: Path) -> None:
    less = plan(request=Request(Target.CPU, "x86_64", dtype=DType.BFLOAT16, kinds=Blocks.NONE.kinds))
    with Journal(tmp_path / "journal.jsonl") as journal:
        Search(less, Scripted({}), judge, journal)
        with pytest.raises(JournalError, match=r"kinds differ"):
            Search(plan(), Scripted({}), judge, journal)


def test_an_experiment_is_balanced_and_its_folders_do_not_tell_the_arm() -> None:
    chosen = searches(["rope", "gated_mlp_up"], Target.CPU, 2)
    assert len(chosen) == 12
    assert {(s.contract, s.blocks) for s in chosen[:6]} == {(c, b) for c in ("rope", "gated_mlp_up") for b in ARMS}
    names = [s.exchange(Path("x")).name for s in chosen]
    assert len(set(names)) == 12
    assert not any(
        b.value in name.removeprefix(s.contract) for s, name in zip(chosen, names, strict=True) for b in ARMS
    )


def test_the_record_counts_rounds_to_right_and_to_accepted_and_failures_by_gate(tmp_path: Path) -> None:
    scripts = {Blocks.NONE: ("no parts", 0.0, 0.8), Blocks.DECISIONS: (0.0, 1.1, 1.2), Blocks.ALL: (1.3, 0.0, 0.7)}
    for search in searches([CONTRACT.id], Target.CPU, 1):
        chosen = plan_of(search, CONTRACT, LIBRARY, REQUEST, ["num_tokens=4", "vocab_size=7"], 3)
        assert [d["num_tokens"] for d in chosen.request.dims] == [4]
        for number, script in enumerate(scripts[search.blocks], start=1):
            with pytest.raises(SearchFailedError, match="no reply yet"):
                _play(chosen, search.exchange(tmp_path), search.work(tmp_path))
            prompt = search.exchange(tmp_path) / f"round-{number}-lane-1.prompt.md"
            digits = prompt.read_text().split()[2]
            text = script if isinstance(script, str) else reply_text(f"{search.blocks.value}{number}", script)
            reply = f"<!-- reply to {digits} by a person -->\n{text}\n<!-- end of reply -->\n"
            prompt.with_name(f"round-{number}-lane-1.reply.md").write_text(reply)
        _play(chosen, search.exchange(tmp_path), search.work(tmp_path))
    found = {o.arm: o for o in outcomes(tmp_path)}
    assert list(found) == ["none", "decisions", "all"]
    assert [(o.first_right, o.first_accepted, o.best) for o in found.values()] == [
        (3, None, 0.8),
        (2, 2, 1.2),
        (1, 1, 1.3),
    ]
    assert found["none"].failures == {"unusable reply": 1, "numerics": 1, "performance": 1}
    assert found["none"].blocks < found["decisions"].blocks < found["all"].blocks
    text = record(list(found.values()), "A title")
    assert "| decisions | 1 |" in text
    assert "numerics 1, performance 1, unusable reply 1" in text
    assert "With 1 search an arm at the least" in text


def _play(chosen: object, exchange: Path, work: Path) -> None:
    run_search(
        chosen,  # type: ignore[arg-type]
        provider=f"exchange:{exchange}",
        work=work,
        store=KernelStore(work / "kernels"),
        judge=judge,
        quiet=True,
    )
