"""Every rule: its examples do what its page says, and the registry is in order."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from kb.cli.failure import Failure
from kb.lint.example import DEMO, Example
from kb.lint.registry import by_code, chosen, rule, rules
from kb.lint.rule import Rule
from tests.kb.lint.running import findings

PACKAGE = Path(__file__).resolve().parents[3] / "kb"


def _cases(which: str) -> list[tuple[str, Rule, Example]]:
    return [
        (f"{rule.code}-{rule.name}-{i}", rule, example)
        for rule in rules()
        for i, example in enumerate(getattr(rule, which))
    ]


@pytest.mark.parametrize(("rule", "example"), [pytest.param(r, e, id=name) for name, r, e in _cases("bad")])
def test_a_bad_example_breaks_its_rule(rule: Rule, example: Example) -> None:
    found = findings(example)
    codes = {finding.code for finding in found}
    assert rule.code in codes
    assert codes <= {rule.code, *rule.companions}, "and no other rule"
    assert all(f.severity is rule.severity for f in found if f.code == rule.code)


@pytest.mark.parametrize(("rule", "example"), [pytest.param(r, e, id=name) for name, r, e in _cases("good")])
def test_a_good_example_has_no_finding_at_all(rule: Rule, example: Example) -> None:
    assert findings(example) == []


def test_the_library_that_examples_are_made_in_has_no_findings() -> None:
    assert findings(Example("", DEMO)) == []


def test_codes_are_unique_and_without_gaps_in_each_hundred() -> None:
    codes = [rule.code for rule in rules()]
    assert codes == sorted(set(codes))
    for hundred in "01234":
        numbers = [int(code[3:]) for code in codes if code[2] == hundred]
        first = 1
        assert numbers == list(range(first, first + len(numbers))), f"AC{hundred}xx"


def test_every_rule_has_a_title_a_page_and_examples() -> None:
    for each in rules():
        assert re.fullmatch(r"AC[0-4][0-9]{2}", each.code)
        assert 10 <= len(each.title) <= 80, each.code
        assert len(each.body) >= 40, each.code
        assert each.good, each.code
        assert each.bad or each.code == "AC001", "a file that cannot be read needs a file system"


def test_names_and_titles_are_unique() -> None:
    assert len({r.name for r in rules()}) == len({r.title for r in rules()}) == len(rules())


def test_every_code_that_the_program_gives_has_a_rule_and_every_rule_is_given() -> None:
    sources = [p.read_text(encoding="utf-8") for p in [*PACKAGE.rglob("*.py")] if "rules" not in p.parts]
    given = {code for text in sources for code in re.findall(r'"(AC[0-9]{3})"', text)}
    known = set(by_code())
    assert given <= known
    silent = {r.code for r in rules() if not hasattr(type(r), "check") or inspect.isabstract(type(r))}
    assert silent <= given, "rules without a check are found by the loader or the engine"


def test_rules_are_chosen_by_prefix() -> None:
    assert chosen(["AC2"], []) == {code for code in by_code() if code.startswith("AC2")}
    assert chosen([], ["AC2"]) == {code for code in by_code() if not code.startswith("AC2")}
    assert chosen(["ac1"], ["AC10"]) == {c for c in by_code() if c.startswith("AC1") and not c.startswith("AC10")}


def test_a_code_that_no_rule_has_is_an_error() -> None:
    with pytest.raises(Failure, match="no rule starts with it"):
        chosen(["AC9"], [])
    with pytest.raises(Failure, match="no such rule"):
        rule("AC999")
