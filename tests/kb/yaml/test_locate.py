"""Errors of the schema are shown at the node they are about."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.diagnostic import Diagnostic
from kb.library import EntryKind, parse_entry
from kb.lint.example import BLOCK, CONTRACT, DEAD_END, _text
from kb.yaml import load_text, set_field, walk
from kb.yaml.edit import EditError


def principle(**changes: str | None) -> tuple[Diagnostic, ...]:
    return parse_entry("principles/demo/x.yaml", EntryKind.PRINCIPLE, load_text(_text(BLOCK, changes))).findings


def contract(**changes: str | None) -> tuple[Diagnostic, ...]:
    return parse_entry("contracts/x.yaml", EntryKind.CONTRACT, load_text(_text(CONTRACT, changes))).findings


def one(found: tuple[Diagnostic, ...]) -> tuple[str, int, int, str]:
    (finding,) = found
    return finding.code, finding.line, finding.column, finding.message


def test_a_sound_entry_has_no_findings() -> None:
    assert principle() == contract() == ()


def test_a_union_complains_only_about_the_branch_that_was_meant() -> None:
    assert one(principle(effect="unknwon")) == ("AC103", 10, 9, "effect: 'unknwon' is not 'unknown'")
    assert one(principle(effect="{low: 1.0, of: time}"))[3] == "the field 'high' is missing in 'effect'"


def test_a_mistyped_field_is_one_finding_not_two() -> None:
    assert one(principle(authors=None, autors="[Ada]"))[3] == "unknown field 'autors'"


def test_an_empty_list_and_a_list_of_broken_entries_are_told_apart() -> None:
    assert one(principle(evidence="[]"))[3] == "evidence: at least 1 needed, 0 given"
    found = principle(evidence="[{kind: published, what: x, reference: [a]}]")
    assert one(found)[3] == "evidence.0.reference: text is needed, this is a list"


def test_a_validator_of_a_whole_model_points_at_the_field_it_names() -> None:
    text = _text(DEAD_END, {"retry_when": None})
    found = parse_entry("principles/demo/x.yaml", EntryKind.PRINCIPLE, load_text(text)).findings
    assert one(found)[:3] == ("AC106", 3, 7), "at the kind, which makes retry_when necessary"
    assert one(principle(modified='"2026-11-01"'))[:3] == ("AC106", 21, 11)


def test_a_contract_points_into_the_tensor_the_dim_and_the_shape_it_is_about() -> None:
    tensors = CONTRACT["tensors"].replace("shape: [rows, width]", "shape: [rows, widht]")
    code, line, column, message = one(contract(tensors=tensors))
    assert (code, line, column) == ("AC106", 15, 32)
    assert message == "tensors.w.shape reads 'widht', which is not a dim of this contract"
    sweep = CONTRACT["sweep"].replace("num_tokens: 5", "num_tokens: 500")
    assert one(contract(sweep=sweep))[:3] == ("AC106", 35, 7)


def test_a_bad_key_of_a_mapping_is_shown_at_the_key() -> None:
    found = contract(sweep=CONTRACT["sweep"] + "\n  vary: {Num-Tokens: [1]}")
    assert one(found)[:3] == ("AC105", 38, 10)


def test_a_number_where_text_is_meant_is_quoted_in_the_fix_as_it_was_written() -> None:
    (finding,) = principle(title="3.10")
    assert finding.code == "AC104"
    assert finding.fix == 'quote it: "3.10"'


@pytest.mark.parametrize(
    "value", ["0", "20261130", "1.5", "true", "[]", '"2026-11-30T00:00:00"', '"30.11.2026"', "2026-11-30 # fine"]
)
def test_only_a_day_is_a_day(value: str) -> None:
    found = principle(modified=value)
    assert (found == ()) is value.endswith("fine")


_WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.just([]), st.just({}), st.just("x"), st.just({"low": "x"}),
    st.just([[1]]), st.just("é" * 5), st.just(1.5), st.just("a b\nc"),
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_wrong_value_gives_findings_inside_the_file_and_never_an_exception(data: st.DataObject) -> None:
    kind, template = data.draw(st.sampled_from([(EntryKind.PRINCIPLE, DEAD_END), (EntryKind.CONTRACT, CONTRACT)]))
    text = _text(template, {})
    for _ in range(data.draw(st.integers(1, 3))):
        paths = [path for path, _ in walk(load_text(text).value) if path]
        try:
            text = set_field(text, data.draw(st.sampled_from(paths)), data.draw(_WRONG))
        except EditError:
            continue
    document = load_text(text)
    entry = parse_entry("principles/demo/x.yaml", kind, document)
    assert (entry.model is None) == bool(entry.findings)
    for finding in entry.findings:
        assert 1 <= finding.line <= len(document.lines.starts)
        assert 1 <= finding.column <= len(text.split("\n")[finding.line - 1]) + 1
