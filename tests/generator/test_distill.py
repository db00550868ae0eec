"""Drafts from a reference: valid, lint-clean, and without a run of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pytest

from generator.distill import DistillError, distill
from generator.providers.protocol import Ask, Completion
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
effect: {low: 1.1, high: 1.2, of: "the kernel's time"}
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
        (GOOD.replace("{low: 1.1", "{low: [1.1"), "block 1"),
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
