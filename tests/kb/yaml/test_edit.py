"""Edits splice text: the target changes, and every other byte, comment and quote stays."""

from __future__ import annotations

import copy
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.yaml import EditError, append, bump_version, load_text, save, set_field, set_status, walk

TEXT = """# yaml-language-server: $schema=x
id: demo/wide-loads   # never changes
title: 'Read "weights"'
status: accepted  # since June
version: 1
patterns: [gemv, rope]  # two
when: {target: [cuda], batch: {max: 4}}
claim: >-  # folded
  A long text that stands
  on two lines.

# about the evidence
evidence:
  - kind: published
    what: "Wide loads"   # quoted
    value: {number: 3.8, unit: TB/s}
  # the second one
  - {kind: reasoned, what: Because}
created: "2026-11-30"
modified: "2026-11-30"
"""
DAY = date(2027, 1, 2)


def changed_lines(before: str, after: str) -> list[str]:
    old = before.splitlines()
    return [line for line in after.splitlines() if line not in old]


def test_setting_the_value_that_is_there_returns_the_very_same_text() -> None:
    document = load_text(TEXT)
    for path, value in walk(document.value):
        if path:
            assert set_field(TEXT, path, value) is TEXT


def test_a_scalar_keeps_its_quotes_and_its_comment() -> None:
    assert changed_lines(TEXT, set_field(TEXT, ("title",), "It's")) == ["title: 'It''s'"]
    assert changed_lines(TEXT, set_field(TEXT, ("evidence", 0, "what"), "Narrow")) == ['    what: "Narrow"   # quoted']


def test_a_text_that_needs_quotes_gets_them() -> None:
    assert 'status: "a: b #c"  # since June' in set_field(TEXT, ("status",), "a: b #c")
    assert 'status: "yes"  # since June' in set_field(TEXT, ("status",), "yes")
    assert 'status: "2026-11-30"  # since June' in set_field(TEXT, ("status",), "2026-11-30")


def test_a_version_is_bumped_with_its_date_and_nothing_else() -> None:
    assert changed_lines(TEXT, bump_version(TEXT, DAY)) == ["version: 2", 'modified: "2027-01-02"']


def test_a_status_comes_with_its_reason_and_successor_behind_it() -> None:
    after = set_status(TEXT, "superseded", DAY, reason="Because: measured", superseded_by="demo/other")
    assert changed_lines(TEXT, after) == [
        "status: superseded  # since June",
        'status_reason: "Because: measured"',
        "superseded_by: demo/other",
        'modified: "2027-01-02"',
    ]
    assert after.index("status:") < after.index("status_reason:") < after.index("version:")


def test_appending_follows_the_style_of_the_list() -> None:
    assert "patterns: [gemv, rope, kv_append]  # two" in append(TEXT, ("patterns",), "kv_append")
    after = append(TEXT, ("evidence",), {"kind": "reasoned", "what": "a, b"})
    assert after.index('  - {kind: reasoned, what: "a, b"}\n') > after.index("Because")


def test_a_list_that_is_missing_is_made() -> None:
    assert load_text(append(TEXT, ("related",), {"id": "a/b"})).at(("related",)) == [{"id": "a/b"}]
    assert changed_lines(TEXT, append(TEXT, ("when", "dims"), "width > 4")) == [
        "when: {target: [cuda], batch: {max: 4}, dims: [width > 4]}"
    ]


def test_a_block_text_is_replaced_as_a_whole_and_the_comments_around_it_stay() -> None:
    after = set_field(TEXT, ("claim",), "word " * 60 + "end")
    assert load_text(after).at(("claim",)) == "word " * 60 + "end"
    assert "# about the evidence" in after


def test_what_would_touch_something_else_is_refused() -> None:
    with pytest.raises(EditError, match="does not exist"):
        set_field(TEXT, ("nowhere", "deep"), 1)
    with pytest.raises(EditError, match="not a list"):
        append(TEXT, ("title",), "x")
    with pytest.raises(EditError, match="AC018"):
        set_field("a: 1\na: 2\n", ("a",), 3)


_VALUES = st.one_of(
    st.text(max_size=40),
    st.integers(-(10**17), 10**17),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.text("ab :#,[]{}'\"\n-", max_size=8), max_size=3),
    st.dictionaries(st.text("abc_", min_size=1, max_size=6), st.text("xy: #", max_size=8), max_size=3),
)
_VISIBLE = st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("Cc", "Cf", "Zs"))
_PATHS = [path for path, _ in walk(load_text(TEXT).value) if path] + [("new",), ("when", "new"), ("evidence", 1, "new")]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_PATHS), _VALUES)
def test_any_value_at_any_place_is_either_set_alone_or_refused(path: tuple[str | int, ...], value: object) -> None:
    try:
        after = set_field(TEXT, path, value)
    except EditError:
        return
    wanted = copy.deepcopy(load_text(TEXT).value)
    above = wanted
    for step in path[:-1]:
        above = above[step]  # type: ignore[index,call-overload]
    above[path[-1]] = value  # type: ignore[index,call-overload]
    assert load_text(after).value == wanted
    for comment in ("# never changes", "# two", "# about the evidence", "# the second one", "# yaml-language-server"):
        inside = path[0] == "evidence" and comment == "# the second one"
        assert inside or comment in after


@settings(max_examples=200, deadline=None)
@given(st.text(_VISIBLE | st.just(" "), max_size=300))
def test_every_readable_text_can_be_a_claim(text: str) -> None:
    assert load_text(set_field(TEXT, ("claim",), text)).at(("claim",)) == text


def test_saving_is_one_step_and_nothing_when_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / "entry.yaml"
    path.write_text(TEXT, encoding="utf-8")
    before = path.stat()
    assert save(path, TEXT) is False
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert save(path, bump_version(TEXT, DAY)) is True
    assert path.read_text(encoding="utf-8") == bump_version(TEXT, DAY)
    assert [p.name for p in tmp_path.iterdir()] == ["entry.yaml"]


def test_saving_through_a_link_writes_the_file_and_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "entry.yaml").write_text(TEXT, encoding="utf-8")
    link = tmp_path / "link.yaml"
    link.symlink_to("entry.yaml")
    save(link, bump_version(TEXT, DAY))
    assert link.is_symlink()
    assert "version: 2" in (tmp_path / "entry.yaml").read_text(encoding="utf-8")
