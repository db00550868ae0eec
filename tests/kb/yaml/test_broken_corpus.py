"""Files as people and machines break them: each gives exactly the findings that are stated for it."""

from __future__ import annotations

import pytest

from kb.yaml import compose, events, load_bytes
from tests.kb.corpus import FOLDER, expectations, findings, shown

EXPECTED = expectations()


def test_the_corpus_is_large_and_every_file_of_it_is_expected() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert files == set(EXPECTED)
    assert len(files) >= 80
    assert all(EXPECTED.values()), "a file without a finding is not broken"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_broken_file_gives_the_stated_codes_lines_and_columns(name: str) -> None:
    assert shown(findings(name)) == EXPECTED[name]


@pytest.mark.skipif(not events.HAS_C, reason="the C parser is not installed, so there is only one parser")
def test_without_the_c_parser_the_findings_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: (FOLDER / name).read_bytes() for name in EXPECTED}
    with_c = {name: load_bytes(data) for name, data in files.items()}
    monkeypatch.setattr(compose, "HAS_C", False)
    monkeypatch.setattr(events, "CParser", None)
    for name, data in files.items():
        without = load_bytes(data)
        assert (without.value, without.problems) == (with_c[name].value, with_c[name].problems), name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_no_message_speaks_of_python(name: str) -> None:
    for finding in findings(name):
        text = f"{finding.message} {finding.fix}"
        for word in ("Error", "Traceback", "pydantic", "object", "Input should", "NoneType", "<class"):
            assert word not in text.replace("python/object", ""), text
