"""What is written by the program is read back as the same values, by the strict loader and by any other reader."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kb.yaml import emit_document, load_text
from kb.yaml.emit import emit_scalar

_READABLE = st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**17), 10**17),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(_READABLE, max_size=30),
    st.text("ab: #-?,[]{}&*!|>'\"%@`\n0.1e~=", max_size=20),
    st.sampled_from(["yes", "no", "on", "null", "~", "010", "1e3", "2026-11-30", "1:30", "", " x", "x ", "- a", "---"]),
)
_KEYS = st.text("abcdef_", min_size=3, max_size=8)
_VALUES = st.recursive(
    _SCALARS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(_KEYS, below, max_size=4),
    max_leaves=12,
)
_DOCUMENTS = st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(_DOCUMENTS)
def test_a_document_reads_back_as_it_was(value: dict[str, object]) -> None:
    text = emit_document(value, header=["made by a test"])
    document = load_text(text)
    assert document.problems == []
    assert document.value == value
    assert list(document.value) == list(value), "in the same order"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_KEYS, _SCALARS, min_size=1, max_size=6))
def test_a_yaml_1_1_reader_reads_the_same(value: dict[str, object]) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)  # type: ignore[assignment]
    assert yaml.load(io.StringIO(emit_document(value))) == value


def test_long_prose_is_folded_and_short_lists_stay_on_their_line() -> None:
    text = emit_document({"claim": "word " * 40 + "end", "patterns": ["gemv", "rope"], "empty": [], "none": {}})
    assert "claim: >-\n  word word" in text
    assert "patterns: [gemv, rope]" in text
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\r", "\x85", "\u200b", "\u202e", "\u2028", "\ufeff", "\ue000"])
def test_a_character_that_is_refused_in_a_file_does_not_come_in_by_an_escape(char: str) -> None:
    document = load_text(emit_document({"title": f"a{char}b"}))
    assert document.value is None
    assert "an escape for" in document.problems[0].message


@pytest.mark.parametrize("value", [math.inf, math.nan, object()])
def test_what_has_no_place_in_an_entry_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"finite|place"):
        emit_scalar(value)
