"""The loader: right values, right places, and no way to make it raise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kb.library import EntryKind, parse_entry
from kb.lint.engine import check_entry
from kb.lint.example import BLOCK, CONTRACT, _text
from kb.yaml import load_bytes, load_file, load_text, walk
from kb.yaml.compose import MAX_DEPTH, Composer
from kb.yaml.events import HAS_C

GOOD = [_text(BLOCK, {}), _text(CONTRACT, {})]


def test_values_are_those_of_yaml_1_2() -> None:
    text = """a: 12
b: -0.5
c: 1.0e-06
d: true
e: null
f: 2026-11-30
g: some text, and more
h: '1.10'
i: "tab\\tnewline\\n"
j: |
  two
  lines
k: >-
  folded
  text
l: [1, {m: o}, []]
"""
    assert load_text(text).value == {
        "a": 12,
        "b": -0.5,
        "c": 1.0e-06,
        "d": True,
        "e": None,
        "f": "2026-11-30",
        "g": "some text, and more",
        "h": "1.10",
        "i": "tab\tnewline\n",
        "j": "two\nlines\n",
        "k": "folded text",
        "l": [1, {"m": "o"}, []],
    }


def test_every_value_knows_where_it_stands() -> None:
    document = load_text("a: 1\nb:\n  - c: x\n    d: 'é ü'\n  - e\nf: {g: [h, i]}\n")
    assert document.place(("a",)) == (1, 4)
    assert document.place(("a",), key=True) == (1, 1)
    assert document.place(("b", 0, "d")) == (4, 8)
    assert document.place(("b", 1)) == (5, 5)
    assert document.place(("f", "g", 1)) == (6, 12)


def test_a_path_that_ends_nowhere_gives_the_nearest_ancestor() -> None:
    document = load_text("a:\n  b: {c: 1}\n")
    assert document.place(("a", "b", "missing")) == (2, 6)
    assert document.nearest(("a", "function-after[x]", "b", "c"))[1] == ("a", "b", "c"), "names of types are skipped"


def test_the_place_of_a_word_inside_a_folded_text_is_where_it_is_written() -> None:
    document = load_text("a: >-\n  one two\n  three two\n")
    value = document.at(("a",))
    assert document.place_in_text(("a",), "two", value.rindex("two")) == (3, 9)


def test_columns_count_characters_not_bytes() -> None:
    assert load_text("ключ: [é, 😀, yes]\n").problems[0].offset == len("ключ: [é, 😀, ")


def test_a_file_that_is_not_there_or_not_a_file_is_a_problem(tmp_path: Path) -> None:
    assert [p.code for p in load_file(tmp_path / "none.yaml").problems] == ["AC001"]
    assert [p.code for p in load_file(tmp_path).problems] == ["AC001"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_does_not_block_the_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert [p.code for p in load_file(tmp_path / "pipe.yaml").problems] == ["AC001"]


def test_a_file_of_many_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(50 * 2**30)
    assert [p.code for p in load_file(tmp_path / "sparse.yaml").problems] == ["AC009"]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "a:\n", "'", '"', "!", "&", "*a ", "|", "{", ":"])
def test_a_hundred_thousand_openings_are_refused_without_harm(opening: str) -> None:
    document = load_text(opening * (100_000 // len(opening)))
    assert document.value is None
    assert document.problems


def test_depth_is_counted_the_same_in_block_and_flow() -> None:
    block = "".join("  " * i + "a:\n" for i in range(MAX_DEPTH)) + "  " * MAX_DEPTH + "a: 1\n"
    flow = "a: " + "{a: " * MAX_DEPTH + "1" + "}" * MAX_DEPTH + "\n"
    assert {p.code for p in load_text(block).problems} == {p.code for p in load_text(flow).problems} == {"AC024"}


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_give_a_value_or_problems_and_never_an_exception(data: bytes) -> None:
    _whole_chain_holds(data)


_YAML_CHARACTERS = st.text(
    st.sampled_from("ab:-?[]{},#&*!|>'\"%@` \n\t\r01.e~=<\\é😀\u2028\ufeff\x00\x1b"), max_size=120
)


@settings(max_examples=600, deadline=None)
@given(_YAML_CHARACTERS)
def test_any_text_of_yaml_characters_gives_a_value_or_problems(text: str) -> None:
    _whole_chain_holds(text.encode("utf-8"))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GOOD), st.integers(0, 2000), st.integers(0, 40), _YAML_CHARACTERS)
def test_a_damaged_entry_gives_findings_with_places_inside_the_file(text: str, at: int, length: int, junk: str) -> None:
    _whole_chain_holds((text[:at] + junk + text[at + length :]).encode("utf-8"))


def _whole_chain_holds(data: bytes) -> None:
    document = load_bytes(data)
    assert (document.value is None) == bool(document.problems)
    for kind in EntryKind:
        folder = "principles/demo" if kind is EntryKind.PRINCIPLE else "contracts"
        report = check_entry(parse_entry(f"{folder}/entry.yaml", kind, document))
        for finding in report.findings:
            assert 0 <= finding.line <= len(document.lines.starts)
            assert finding.column >= (1 if finding.line else 0)
            assert "\n" not in finding.message


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(GOOD), st.integers(0, 2000), st.integers(0, 6), st.text("ab:-[]{},'\"\n 1.", max_size=4))
@pytest.mark.skipif(not HAS_C, reason="the C parser is not installed, so there is only one parser")
def test_the_c_parser_and_the_python_parser_read_the_same(text: str, at: int, length: int, junk: str) -> None:
    damaged = text[:at] + junk + text[at + length :]
    fast, slow = Composer(damaged), Composer(damaged)
    if fast.run(pure=False) and slow.run(pure=True):
        assert fast.value == slow.value
        assert fast.problems == slow.problems
        assert fast.root == slow.root, "and places every value alike"


def test_walking_a_document_meets_every_value_in_file_order() -> None:
    value = {"a": [1, {"b": 2}], "c": "x"}
    assert [path for path, _ in walk(value)] == [(), ("a",), ("a", 0), ("a", 1), ("a", 1, "b"), ("c",)]
