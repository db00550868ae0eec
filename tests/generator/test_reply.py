"""Replies: tolerant of prose, strict about content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.reply import ReplyError, parse_reply
from kb.dtype import Target

GOOD = """I thought about it.

<source>
```cuda
// contract: rope
extern "C" __global__ void rope() { if (1 < 2 && 3 > 2) {} }
```
</source>

<plan>
```yaml
launches:
  - entry: rope
    grid: [ceil_div(num_tokens, 4), 1, 1]
    block: [256, 1, 1]
    programmatic_dependent: true
workspace: {bytes: 4 * max(num_sms, 8), zeroed: once}
```
</plan>

<notes>
Bound by latency.
</notes>
"""


def parse(text: str):
    return parse_reply(text, "rope", Target.CUDA)


def codes(text: str) -> list[str]:
    with pytest.raises(ReplyError) as caught:
        parse(text)
    return [f.code for f in caught.value.findings]


def test_fences_and_prose_around_the_parts_are_taken_off() -> None:
    candidate = parse(GOOD)
    assert candidate.source.startswith("// contract: rope\nextern")
    assert "```" not in candidate.source
    assert str(candidate.plan.workspace.bytes) == "4 * max(num_sms, 8)"
    assert str(candidate.plan.launches[0].grid[0]) == "ceil_div(num_tokens, 4)"
    assert candidate.plan.workspace.zeroed == "once"
    assert candidate.notes == "Bound by latency.\n"


def test_tags_named_inside_a_sentence_do_not_count() -> None:
    text = "I put it into the <source> and <plan> parts.\n" + GOOD
    assert parse(text) == parse(GOOD)


def test_notes_may_be_left_out() -> None:
    assert parse(GOOD[: GOOD.index("<notes>")]).notes == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: "", ["empty-reply"]),
        (lambda t: "Sorry, I cannot.", ["part-missing", "part-missing"]),
        (lambda t: t.replace("</source>", ""), ["part-open"]),
        (lambda t: t + t, ["part-twice", "part-twice", "part-twice"]),
        (lambda t: t.replace("launches:", "launches: ]"), ["plan-yaml"]),
        (lambda t: t.replace("launches:", "launch:"), ["plan-invalid", "plan-invalid"]),
        (lambda t: t.replace("num_tokens, 4", "__import__('os')"), ["plan-invalid"]),
        (lambda t: t.replace("entry: rope", "entry: rope;drop"), ["plan-invalid"]),
        (lambda t: t.replace("zeroed: once", "zeroed: always"), ["plan-invalid"]),
        (lambda t: t.replace("grid: [ceil_div(num_tokens, 4), 1, 1]", "grid: &a [1, 1, 1]"), ["plan-yaml"]),
        (lambda t: t.replace("launches:", "host_code: x\nlaunches:"), ["plan-invalid"]),
        (lambda t: t.replace("// contract: rope", "x" * 250_000), ["plan-invalid"]),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_guessed(change, expected: list[str]) -> None:
    assert set(codes(change(GOOD))) == set(expected)


def outcome(text: str) -> object:
    try:
        return parse(text)
    except ReplyError as error:
        return error.findings


@given(st.text(max_size=400))
def test_any_text_gives_a_candidate_or_findings(text: str) -> None:
    for whole in (text, GOOD.replace("rope() {", text), f"<source>\n{text}</source>\n<plan>\n{text}\n</plan>"):
        assert outcome(whole)


@given(st.binary(max_size=200))
def test_any_plan_bytes_give_a_plan_or_findings(data: bytes) -> None:
    text = f"<source>\nx\n</source>\n<plan>\n{data.decode('latin-1')}\n</plan>\n"
    assert outcome(text)
