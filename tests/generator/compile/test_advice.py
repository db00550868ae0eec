"""Advice reorders the plan space and never leaves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator.advice import NO_ADVICE, take_advice
from generator.advice.advice import parse_advice
from generator.advice.prompt import question
from generator.compile.survey import Kind
from generator.providers.exchange import Exchange
from generator.providers.protocol import Ask, Completion
from generator.providers.replay import Replay


def projection(kinds: tuple[Kind, ...]) -> Kind:
    return next(k for k in kinds if k.label == "linear + gelu")


def said(kind: Kind, **what: object) -> str:
    return json.dumps({"regions": {kind.id: what}})


class Author:
    """Answers with a text, whatever is asked."""

    name = "author"

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[Ask] = []

    def ask(self, question: Ask, on_text: Callable[[str], None] | None = None) -> Completion:
        self.asked.append(question)
        return Completion(text=self.text, model="model-x")


def test_the_question_names_every_region_and_plan_and_is_the_same_again(kinds: tuple[Kind, ...]) -> None:
    asked = question(kinds)
    assert asked == question(kinds)
    for kind in kinds:
        if kind.plans is not None:
            assert kind.id in asked.text
            assert all(f"`{plan.key}`" in asked.text for plan in kind.plans.plans)


def test_an_order_within_the_space_is_followed(kinds: tuple[Kind, ...]) -> None:
    kind = projection(kinds)
    assert kind.plans is not None
    last = kind.plans.legal[-1].key
    advice = take_advice(Author(f"Sure.\n```json\n{said(kind, order=[last], label='up')}\n```\n"), kinds)
    assert (advice.provider, advice.model, advice.ignored) == ("author", "model-x", ())
    after = projection_after(advice.apply(kinds), kind.id)
    assert after.plans is not None
    assert after.plans.plans[0].key == last
    assert len(after.plans.plans) == len(kind.plans.plans)
    assert after.label == "up"


def projection_after(kinds: tuple[Kind, ...], kind_id: str) -> Kind:
    return next(k for k in kinds if k.id == kind_id)


def test_a_hint_prefers_the_plans_that_have_it(kinds: tuple[Kind, ...]) -> None:
    kind = projection(kinds)
    assert kind.plans is not None
    wanted = kind.plans.legal[-1].parameters.rows  # type: ignore[union-attr]
    advice = parse_advice(said(kind, parameters={"rows": wanted}), kinds)
    after = projection_after(advice.apply(kinds), kind.id)
    assert after.plans is not None
    assert after.plans.plans[0].parameters.rows == wanted  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("what", "counted"),
    [
        ({"order": ["gemv rows=31", "no such plan"]}, 2),
        ({"order": "gemv"}, 1),
        ({"parameters": {"rows": 31, "tile": 4, "source": "int main() {}"}}, 3),
        ({"parameters": [1]}, 1),
        ({"label": "two\nlines"}, 1),
        ({"source": "int main() {}"}, 1),
    ],
)
def test_what_is_outside_the_space_is_counted_and_changes_nothing(
    kinds: tuple[Kind, ...], what: dict[str, object], counted: int
) -> None:
    advice = parse_advice(said(projection(kinds), **what), kinds)
    assert len(advice.ignored) == counted
    assert advice.apply(kinds) == kinds


def test_a_region_that_is_not_there_is_counted(kinds: tuple[Kind, ...]) -> None:
    advice = parse_advice('{"regions": {"region_0": {"label": "x"}}, "more": 1}', kinds)
    assert len(advice.ignored) == 2
    assert advice.apply(kinds) == kinds


def test_without_an_answer_everything_is_the_same(kinds: tuple[Kind, ...], tmp_path: Path) -> None:
    waiting = take_advice(Exchange(tmp_path), kinds)
    assert "no reply yet" in waiting.problem
    assert (tmp_path / "advice.prompt.md").is_file()
    missing = take_advice(Replay({}), kinds)
    assert "no recorded reply" in missing.problem
    prose = take_advice(Author("I would rather not."), kinds)
    assert prose.problem == "the reply holds no JSON object"
    assert waiting.apply(kinds) == missing.apply(kinds) == prose.apply(kinds) == NO_ADVICE.apply(kinds) == kinds


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
        max_leaves=12,
    )
)
def test_no_reply_breaks_or_widens_the_space(kinds: tuple[Kind, ...], value: object) -> None:
    kind = projection(kinds)
    for reply in (json.dumps(value), json.dumps({"regions": value}), said(kind, order=value, parameters=value)):
        after = parse_advice(reply, kinds).apply(kinds)
        for old, new in zip(kinds, after, strict=True):
            if old.plans is not None and new.plans is not None:
                assert set(new.plans.plans) <= set(old.plans.legal)
                assert len(new.plans.plans) == len(old.plans.plans)
