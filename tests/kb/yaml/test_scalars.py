"""Unquoted words: what is accepted means the same to YAML 1.1 and YAML 1.2 readers."""

from __future__ import annotations

import io
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kb.yaml.scalars import Ambiguous, resolve_plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("128", 128),
        ("0.5", 0.5),
        ("-1.25", -1.25),
        ("1.0e-6", 1e-6),
        ("1.5E+3", 1500.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("sm_90", "sm_90"),
        ("16-byte loads", "16-byte loads"),
        ("3.10.1", "3.10.1"),
        ("1.2.3-rc1", "1.2.3-rc1"),
        ("yEs", "yEs"),
        ("nothing", "nothing"),
        ("-", "-"),
        ("12 of 12", "12 of 12"),
    ],
)
def test_a_plain_scalar_is_what_the_core_schema_says(text: str, value: object) -> None:
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "Yes",
        "NO",
        "on",
        "Off",
        "y",
        "N",
        "True",
        "FALSE",
        "Null",
        "~",
        "=",
        "<<",
        "010",
        "-010",
        "0o17",
        "0x1F",
        "0b11",
        "1_000",
        "1e3",
        "1.5e3",
        ".5",
        "5.",
        "+1",
        "-0",
        "1:30",
        "12:30:45.6",
        "2026-1-5",
        "2026-11-30T10:00:00Z",
        "12e4567",
    ],
)
def test_what_readers_disagree_about_is_refused_with_advice(text: str) -> None:
    with pytest.raises(Ambiguous) as refused:
        resolve_plain(text)
    assert refused.value.code == "AC020"
    assert refused.value.fix


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1.0e+999", "9" * 19, "-" + "9" * 5000])
def test_numbers_beyond_every_reader_are_refused(text: str) -> None:
    with pytest.raises(Ambiguous) as refused:
        resolve_plain(text)
    assert refused.value.code == "AC022"


def test_the_advice_for_a_number_is_a_number_that_is_accepted() -> None:
    with pytest.raises(Ambiguous) as refused:
        resolve_plain("1e3")
    advised = refused.value.fix.split()[1]
    assert resolve_plain(advised) == 1000.0


_TOKENS = st.one_of(
    st.from_regex(r"\A[-+]?[0-9_.:xob]{1,8}([eE][-+]?[0-9]{1,3})?\Z"),
    st.from_regex(r"\A[0-9]{1,4}-[0-9]{1,2}-[0-9]{1,2}\Z"),
    st.from_regex(r"\A[~=<.]?[yYnNoOtTfFuUlLeEsSaArR]{0,5}\Z"),
    st.from_regex(r"\A[a-z0-9][a-z0-9 ._/+-]{0,12}\Z"),
)


@settings(max_examples=500, deadline=None)
@given(_TOKENS)
def test_what_is_accepted_reads_the_same_under_yaml_1_1_and_1_2(text: str) -> None:
    text = text.strip()
    if not text or text.startswith("- ") or text in ("-", "---", "...") or ": " in text or text.endswith(":"):
        return
    try:
        ours = resolve_plain(text)
    except (Ambiguous, ValueError):
        return
    for version in ((1, 1), (1, 2)):
        theirs = _read(text, version)
        if isinstance(theirs, date):
            # A day is text to us and a date to others: the same day, and the schema asks for days where they may be.
            assert theirs.isoformat() == ours
        else:
            assert theirs == ours, version
            assert type(theirs) is type(ours)


def _read(text: str, version: tuple[int, int]) -> object:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version  # type: ignore[assignment]
    return yaml.load(io.StringIO(f"- {text}\n"))[0]
