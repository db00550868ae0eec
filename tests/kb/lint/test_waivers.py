"""Waivers: where they reach, and that they need a code and a reason."""

from __future__ import annotations

from datetime import date

import pytest

from kb.lint.engine import lint_files
from kb.lint.example import BLOCK, DEMO, _text

PATH = "principles/demo/wide-loads.yaml"


def found(text: str, today: date = date(2026, 11, 30)) -> list[tuple[str, int]]:
    return [(f.code, f.line) for f in lint_files({**DEMO, PATH: text.encode()}, today=today)]


def block(**changes: str | None) -> str:
    return _text(BLOCK, changes)


def test_a_waiver_at_the_end_of_a_line_covers_what_starts_there() -> None:
    text = ">- # noqa: AC111 the record is about this model\n  Every weight byte is used once,\n  in all 9728 columns."
    assert found(block(why=text)) == []
    assert found(block(why=text.replace("# noqa: AC111 the record is about this model", ""))) == [("AC111", 11)]


def test_a_waiver_on_its_own_line_covers_the_value_below() -> None:
    text = (
        block()
        .replace("why:", "# noqa: AC115 the paper explains it\n# and more\n\nwhy:")
        .replace(BLOCK["why"], "It is fast.")
    )
    assert found(text) == []


def test_a_waiver_above_the_first_field_covers_the_file() -> None:
    text = "# noqa: AC111, AC112 a study of one model\n" + block(
        title="Read Qwen3 weights", why="Every weight byte is used once in all 9728 columns of it."
    )
    assert found(text) == []


def test_a_waiver_covers_no_other_line_and_no_other_code() -> None:
    wrong_line = block(title="Read wide # noqa: AC115 the paper explains it", why="It is fast.")
    assert found(wrong_line) == [("AC028", 2), ("AC115", 9)]
    wrong_code = block(why="It is fast. # noqa: AC112 the paper explains it")
    assert found(wrong_code) == [("AC115", 9), ("AC028", 9)]


def test_a_waiver_ends_on_its_day_and_not_before() -> None:
    text = block(why="It is fast. # noqa: AC115 until the paper is out, until=2026-11-30")
    assert found(text, date(2026, 11, 30)) == []
    assert found(text, date(2026, 12, 1)) == [("AC115", 9), ("AC029", 9)]


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "# noqa: reason without a code",
        "# noqa: AC115",
        "# noqa: AC115 --",
        "# noqa: AC115 a reason, until=2026-02-30",
        "# noqa: AC999 a reason",
        "# noqa: AC101 the schema cannot be waived",
        "# noqa: AC028 nor can a waiver",
    ],
)
def test_a_waiver_that_does_not_say_enough_excuses_nothing(comment: str) -> None:
    assert found(block(why=f"It is fast. {comment}")) == [("AC115", 9), ("AC027", 9)]


def test_the_word_inside_a_text_is_no_waiver() -> None:
    assert found(block(title='"Say # noqa: AC110 in a text"')) == []
    assert (
        found(block(why=">-\n  Every weight byte is used once,\n  # noqa: AC110 in a text\n  so bytes decide.")) == []
    )


def test_findings_of_other_files_are_not_touched() -> None:
    other = block(id="demo/other", title="Something else", why="It is fast.").encode()
    waived = block(why="It is fast. # noqa: AC115 the paper explains it").encode()
    files = {**DEMO, PATH: waived, "principles/demo/other.yaml": other}
    assert [f.path for f in lint_files(files, today=date(2026, 11, 30))] == ["principles/demo/other.yaml"]
