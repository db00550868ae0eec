"""What each edit of an entry is called."""

from __future__ import annotations

from typing import Any

import pytest

from kb.contract import Contract
from kb.diff import Bump, ChangeClass, EntryChange, Relation, diff_entry
from kb.yaml import load_text
from tests.kb.git.checkout import contract, contract_yaml, principle

EDITORIAL, CLAIM, REVERSED, STATUS = (
    ChangeClass.EDITORIAL,
    ChangeClass.CLAIM,
    ChangeClass.REVERSED,
    ChangeClass.STATUS,
)


def change(before: dict[str, Any], after: dict[str, Any]) -> EntryChange:
    found = diff_entry(principle(**before), principle(**after))
    assert found is not None
    return found


def edited(*replacements: tuple[str, str]) -> EntryChange:
    """The contract of the tests with its text edited."""
    text = contract_yaml()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    found = diff_entry(contract(), Contract.model_validate(load_text(text).value))
    assert found is not None
    return found


PUBLISHED = {"kind": "published", "what": "One kernel beat two on a small GPU.", "reference": "a/b#1"}
REASONED = {"kind": "reasoned", "what": "A second pass doubles the traffic."}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ({}, {"title": "Another title"}, EDITORIAL),
        ({}, {"modified": "2026-02-02"}, EDITORIAL),
        ({}, {"claim": "keep the row in  registers, and read every weight once"}, EDITORIAL),
        ({}, {"claim": "Keep the row in shared memory and read every weight once."}, CLAIM),
        ({}, {"why": "Latency decides."}, CLAIM),
        ({}, {"claim": "Do not keep the row in registers and read every weight once."}, REVERSED),
        ({"claim": "Never split K."}, {"claim": "Split K."}, REVERSED),
        ({}, {"kind": "mandate"}, CLAIM),
        ({}, {"effect": {"low": 1.1, "high": 1.2, "of": "the kernel"}}, ChangeClass.EFFECT),
        ({}, {"effect": "unknown"}, ChangeClass.EFFECT),
        ({}, {"effect": {"low": 0.8, "high": 0.9, "of": "the kernel"}}, REVERSED),
        ({}, {"status": "retired", "status_reason": "No longer true."}, STATUS),
        ({}, {"supersedes": ["demo/old"]}, STATUS),
        ({}, {"related": [{"id": "demo/other", "relation": "refines"}]}, ChangeClass.LINKS),
        ({}, {"references": ["https://example.org"]}, ChangeClass.LINKS),
        ({}, {"patterns": ["op", "rope"]}, ChangeClass.WIDENED),
        ({"patterns": ["op", "rope"]}, {"patterns": ["rope", "op"]}, EDITORIAL),
        ({"patterns": ["rope"]}, {}, ChangeClass.SHIFTED),
        ({}, {"when": {"target": ["cuda"], "batch": {"max": 4}}}, ChangeClass.NARROWED),
        ({}, {"when": {"batch": {"max": 8}}}, ChangeClass.WIDENED),
        ({}, {"evidence": [REASONED, PUBLISHED]}, ChangeClass.EVIDENCE_ADDED),
        ({"evidence": [PUBLISHED, REASONED]}, {}, ChangeClass.EVIDENCE_REMOVED),
        ({"evidence": [PUBLISHED]}, {"evidence": [{**PUBLISHED, "hardware": "GPU"}]}, ChangeClass.EVIDENCE_CHANGED),
        ({"evidence": [PUBLISHED, REASONED]}, {"evidence": [REASONED, PUBLISHED]}, EDITORIAL),
    ],
)
def test_an_edit_of_a_principle_has_one_class(before: dict[str, Any], after: dict[str, Any], kind: ChangeClass):
    assert change(before, after).classes == (kind,)


def test_a_decision_that_became_a_dead_end_is_reversed():
    found = change({}, {"kind": "dead_end", "retry_when": "The row no longer fits."})
    assert {f.path: f.kind for f in found.fields} == {"kind": REVERSED, "retry_when": CLAIM}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("title: An operation", "title: The operation", EDITORIAL),
        ("doc: Width of a row", "doc: Elements a row", EDITORIAL),
        ("why: Storage", "why: It is stored", EDITORIAL),
        ("status: accepted", "status: retired", STATUS),
        ("max: 32768", "max: 4096", ChangeClass.NARROWED),
        ("max: 32768", "max: 65536", ChangeClass.WIDENED),
        ('constraints: ["hidden_size % 8 == 0"]', "constraints: []", ChangeClass.WIDENED),
        ('constraints: ["hidden_size % 8 == 0"]', 'constraints: ["hidden_size % 4 == 0"]', ChangeClass.WIDENED),
        ('rows start on 16 bytes, dims: "hidden_size % 8 == 0"', "", ChangeClass.WIDENED),
        ("storage: [bfloat16, float16, float32]", "storage: [bfloat16]", ChangeClass.NARROWED),
        ("hidden_size: {kind: static", "hidden_size: {kind: runtime", ChangeClass.INTERFACE),
        ("role: out, shape: [num_tokens, hidden_size]", "role: out, shape: [num_tokens]", ChangeClass.INTERFACE),
        ("name: x, role: in,", "name: x, role: in, align: 32,", ChangeClass.INTERFACE),
        ("2 * x", "3 * x", ChangeClass.NUMERICS),
        ("kappa: 1.25", "kappa: 2.0", ChangeClass.NUMERICS),
        ("binding: true", "binding: false", ChangeClass.NUMERICS),
        ("accumulate: float32", "accumulate: bfloat16", ChangeClass.NUMERICS),
        ("cuda: [torch_eager]", "cuda: [torch_eager, triton_op]", ChangeClass.JUDGEMENT),
        ("hidden_size: 4096}", "hidden_size: 8192}", ChangeClass.JUDGEMENT),
    ],
)
def test_an_edit_of_a_contract_has_one_class(old: str, new: str, kind: ChangeClass):
    if old.startswith("rows start"):
        found = edited(('  - {name: vector-width, doc: Rows start on 16 bytes, dims: "hidden_size % 8 == 0"}\n', ""),
                       ("preconditions:\n", "preconditions: []\n"))  # fmt: skip
    else:
        found = edited((old, new))
    assert found.classes == (kind,)


def test_the_order_of_arguments_is_interface():
    x = "  - {name: x, role: in, shape: [num_tokens, hidden_size], dtype: T, doc: Input rows}\n"
    out = "  - {name: out, role: out, shape: [num_tokens, hidden_size], dtype: T, doc: Output rows}\n"
    found = edited((x + out, out + x))
    assert [(f.path, f.kind) for f in found.fields] == [("tensors.order", ChangeClass.INTERFACE)]
    dims = contract_yaml().split("dims:\n")[1].split("# What must hold")[0].splitlines(keepends=True)
    found = edited(("".join(dims), "".join(reversed(dims))))
    assert [(f.path, f.kind) for f in found.fields] == [("dims.order", ChangeClass.INTERFACE)]


def test_an_added_tensor_is_one_change_and_leaves_the_others_alone():
    out = "  - {name: out,"
    found = edited((out, "  - {name: bias, role: in, shape: [hidden_size], dtype: T, doc: Bias}\n" + out))
    assert [(f.path, f.before, f.kind) for f in found.fields] == [("tensors.bias", None, ChangeClass.INTERFACE)]


def test_each_condition_is_classified_alone_and_all_of_them_together():
    found = change({}, {"when": {"target": ["cuda", "cpu"], "batch": {"max": 4}}})
    assert {f.path: f.kind for f in found.fields} == {
        "when.target": ChangeClass.WIDENED,
        "when.batch": ChangeClass.NARROWED,
    }
    assert found.applicability is Relation.SHIFTED


def test_a_condition_said_in_another_field_is_no_change_of_applicability():
    found = change({"when": {"batch": {"max": 8}}}, {"when": {"dims": ["num_tokens <= 8"]}})
    assert found.applicability is Relation.EQUAL


def test_evidence_edited_in_two_fields_is_matched_with_what_it_was():
    after = {**PUBLISHED, "what": "One kernel beat two on a small GPU by far.", "value": {"number": 2, "unit": "x"}}
    found = change({"evidence": [REASONED, PUBLISHED]}, {"evidence": [after, REASONED]})
    assert [(f.path, f.kind) for f in found.fields] == [
        ("evidence.0.what", ChangeClass.EVIDENCE_CHANGED),
        ("evidence.0.value", ChangeClass.EVIDENCE_CHANGED),
    ]


@pytest.mark.parametrize(
    ("before", "after", "bump"),
    [
        ({}, {"claim": "Another claim."}, Bump.MISSING),
        ({}, {"claim": "Another claim.", "version": 2}, Bump.BUMPED),
        ({}, {"title": "Another title"}, Bump.NOT_NEEDED),
        ({}, {"title": "Another title", "version": 2}, Bump.NEEDLESS),
        ({}, {"evidence": [REASONED, PUBLISHED]}, Bump.NOT_NEEDED),
        ({}, {"evidence": [REASONED, PUBLISHED], "version": 2}, Bump.BUMPED),
        ({"version": 2}, {"claim": "Another claim."}, Bump.LOWERED),
        ({"status": "draft"}, {"claim": "Another claim.", "status": "draft"}, Bump.NOT_NEEDED),
        ({"status": "draft"}, {"status": "accepted"}, Bump.NOT_NEEDED),
    ],
)
def test_the_version_is_held_against_the_meaning(before: dict[str, Any], after: dict[str, Any], bump: Bump):
    assert change(before, after).bump is bump


def test_equal_entries_have_no_change():
    assert diff_entry(principle(), principle()) is None
    assert diff_entry(contract(), contract()) is None


def test_two_kinds_of_entry_are_never_compared():
    with pytest.raises(TypeError):
        diff_entry(principle(), contract())
