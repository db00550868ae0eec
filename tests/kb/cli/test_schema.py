"""``agentcompile schema``: what editors check with agrees with what the loader accepts."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kb.library import EntryKind, load_library
from kb.schema import schema_text
from kb.yaml import load_text
from tests.kb.cli.command import agentcompile
from tests.kb.git.checkout import contract_yaml, principle_fields

ROOT = Path(__file__).parents[3]


@lru_cache
def validator(kind: EntryKind) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(schema_text(kind)))


def errors(kind: EntryKind, value: Any) -> list[str]:
    """What an editor would underline."""
    return [error.message for error in validator(kind).iter_errors(value)]


@pytest.mark.parametrize("kind", EntryKind)
def test_the_schema_is_draft_07_and_nothing_newer(kind: EntryKind):
    text = schema_text(kind)
    schema = json.loads(text)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(schema)
    for newer in ("$defs", "prefixItems", "unevaluatedProperties", "dependentRequired", '"discriminator"'):
        assert newer not in text


@pytest.mark.parametrize("kind", EntryKind)
def test_nothing_stands_beside_a_reference_where_draft_07_would_ignore_it(kind: EntryKind):
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert "$ref" not in node or len(node) == 1
            for below in node.values():
                walk(below)
        elif isinstance(node, list):
            for below in node:
                walk(below)

    walk(json.loads(schema_text(kind)))


def test_every_shipped_entry_is_good():
    library = load_library(ROOT)
    assert len(library.entries) > 60
    for entry in library.entries:
        assert errors(entry.kind, entry.document.value) == [], entry.path


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "opinion"},
        {"version": "1"},
        {"version": 0},
        {"patterns": []},
        {"id": "Demo/Slug"},
        {"title": ""},
        {"titel": "misspelt"},
        {"when": {"targets": ["cuda"]}},
        {"when": {"target": ["tpu"]}},
        {"when": {"arch": {"min": "hopper"}}},
        {"effect": "large"},
        {"effect": {"low": 1.0, "high": 1.1}},
        {"evidence": []},
        {"evidence": [{"kind": "guessed", "what": "x"}]},
        {"claim": None},
        {"related": [{"id": "demo/other", "relation": "friend"}]},
    ],
)
def test_a_bad_principle_is_underlined(change: dict[str, Any]):
    assert errors(EntryKind.PRINCIPLE, principle_fields()) == []
    assert errors(EntryKind.PRINCIPLE, principle_fields(**change))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind: static, doc: Rows", "kind: fixed, doc: Rows"),
        ("role: in", "role: input"),
        ("dtype: T", "dtype: half"),
        ("kappa: 1.25", "kappa: 0.5"),
        ("distributions: [normal", "distributions: [gaussian"),
        ("storage: [bfloat16, float16, float32]", "storage: []"),
        ("cuda: [torch_eager]", "rocm: [torch_eager]"),
        ("num_tokens: 1, hidden_size: 1024", "num_tokens: one, hidden_size: 1024"),
    ],
)
def test_a_bad_contract_is_underlined(old: str, new: str):
    assert old in contract_yaml()
    assert errors(EntryKind.CONTRACT, load_text(contract_yaml()).value) == []
    assert errors(EntryKind.CONTRACT, load_text(contract_yaml().replace(old, new)).value)


def test_the_shipped_schemas_are_current():
    checked = agentcompile("schema", "--check", "--library", ROOT)
    assert (checked.code, checked.err) == (0, "")


def test_one_schema_is_printed_and_both_are_written(tmp_path: Path):
    assert agentcompile("schema", "principle").out == schema_text(EntryKind.PRINCIPLE)
    written = agentcompile("schema", "--output", tmp_path / "out")
    assert written.code == 0
    for kind in EntryKind:
        assert (tmp_path / f"out/{kind.value}.json").read_text() == schema_text(kind)
    assert agentcompile("schema", "--output", tmp_path / "out").out == ""
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["contract.json", "principle.json"]


def test_check_fails_on_a_file_that_is_missing_or_old_and_writes_nothing(tmp_path: Path):
    checked = agentcompile("schema", "--check", "--output", tmp_path)
    assert checked.code == 1
    assert "'agentcompile schema' writes them again" in checked.err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "contract.json").write_text("{}")
    checked = agentcompile("schema", "contract", "--check", "--output", tmp_path)
    assert checked.code == 1
    assert (tmp_path / "contract.json").read_text() == "{}"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    written = agentcompile("schema", "--output", tmp_path / "file")
    assert written.code == 2
    assert "cannot be" in written.err
