"""Drafts from a reference: valid, lint-clean, and without a run of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from generator.cli.distill import command
from generator.distill import DistillError, distill
from generator.providers.protocol import Ask, Completion
from kb.cli.failure import Failure
from tests.generator.scripted import CONTRACT

REFERENCE = "for (int k = lane * 8; k < hidden_size; k += 256) acc = fma_pairs(acc, ldg_stream(row + k));"
GOOD = """Here are two.
<block>
id: gated-mlp/stream-rows
title: Stream each row past the first-level cache
kind: decision
when: {target: [cuda], batch: {max: 1}}
claim: Let every lane read sixteen bytes of its row at a time and keep two reads in flight.
why: One read in flight leaves most of the bandwidth unused.
effect: unknown
evidence:
  - {kind: reasoned, what: Bytes in flight must cover bandwidth times latency.}
</block>
"""
LEAKING = GOOD.replace(
    "claim: Let every lane", "claim: >-\n  for (int k = lane * 8; k < hidden_size; k += 256) and let every lane"
)


class Answers:
    name = "answers"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[Ask] = []

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        self.asked.append(question)
        return Completion(text=self.texts[min(len(self.asked), len(self.texts)) - 1], model="m")


def run(provider: Answers, lint=lambda _: []):
    return distill(
        CONTRACT,
        REFERENCE,
        "12.3 µs against 14.0 µs",
        record="bench/results/x.md",
        provider=provider,
        author="someone",
        today=date(2026, 11, 30),
        lint=lint,
    )


def test_a_good_answer_becomes_drafts_that_decide_nothing_themselves() -> None:
    (draft,) = run(Answers(GOOD.replace("kind: decision", "kind: decision\nstatus: accepted\nversion: 7")))
    assert draft.principle.status == "draft"
    assert draft.principle.version == 1
    assert draft.principle.patterns == (CONTRACT.id,)
    assert draft.principle.authors == ("someone",)


def test_a_leak_goes_back_with_what_leaked_and_the_second_answer_counts() -> None:
    provider = Answers(LEAKING, GOOD)
    assert len(run(provider)) == 1
    assert "stands in the reference too" in provider.asked[1].history
    assert provider.asked[0].prefix == provider.asked[1].prefix


def test_an_answer_that_keeps_leaking_is_refused() -> None:
    with pytest.raises(DistillError, match="3 attempts: block 1: 'for"):
        run(Answers(LEAKING))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I would rather not.", "no <block> was found"),
        (GOOD.replace("kind: decision", "kind: dead_end"), "needs 'retry_when'"),
        (GOOD.replace("effect: unknown", "effect: [unknown"), "block 1"),
    ],
)
def test_what_is_wrong_is_told(answer: str, problem: str) -> None:
    provider = Answers(answer, GOOD)
    run(provider)
    assert problem in provider.asked[1].history


def test_findings_of_the_linter_go_back_too() -> None:
    provider = Answers(GOOD)
    with pytest.raises(DistillError, match="AC999 too vague"):
        run(provider, lint=lambda _: ["AC999 too vague"])
    assert len(provider.asked) == 3


def test_the_command_writes_lint_clean_drafts_from_an_exchange_folder(tmp_path: Path) -> None:
    from kb.library import load_library

    (tmp_path / "ref.cu").write_text(REFERENCE)
    (tmp_path / "record.md").write_text("12.3 against 14.0")
    arguments = ["gated_mlp_up", "--reference", str(tmp_path / "ref.cu"), "--record", str(tmp_path / "record.md")]
    arguments += ["--output", str(tmp_path / "principles" / "gated-mlp"), "--author", "someone"]
    arguments += ["--provider", f"exchange:{tmp_path / 'x'}"]
    app = typer.Typer()
    app.command()(command)
    first = CliRunner().invoke(app, arguments)
    assert isinstance(first.exception, Failure)
    assert "no reply yet" in str(first.exception)
    prompt = tmp_path / "x" / "distill-gated_mlp_up-1.prompt.md"
    digits = prompt.read_text().split()[2]
    reply = f"<!-- reply to {digits} by someone -->\n{GOOD}<!-- end of reply -->\n"
    (tmp_path / "x" / "distill-gated_mlp_up-1.reply.md").write_text(reply)
    second = CliRunner().invoke(app, arguments)
    assert second.exit_code == 0, second.output
    (tmp_path / "contracts").mkdir()
    assert list(load_library(tmp_path).principles) == ["gated-mlp/stream-rows"]
    again = CliRunner().invoke(app, arguments)
    assert "exists; move it" in str(again.exception)
