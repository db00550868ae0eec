"""Overlap of conditions, held against situations: what both hold in is never called disjoint."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.condition import Situation, When, applies
from kb.dtype import DType, Target
from kb.lint.overlap import overlap


def when(**fields: object) -> When:
    return When.model_validate(fields)


@pytest.mark.parametrize(
    ("a", "b", "meets"),
    [
        ({}, {}, True),
        ({"target": ["cuda"]}, {"target": ["cpu"]}, False),
        ({"target": ["cuda"]}, {"arch": {"any_of": ["x86_64"]}}, False),
        ({"arch": {"max": "sm_89"}}, {"arch": {"min": "sm_90"}}, False),
        ({"dtype": ["bfloat16"]}, {"dtype": ["float16", "bfloat16"]}, True),
        ({"dtype": ["bfloat16"]}, {"dtype": ["float32"]}, False),
        ({"batch": {"max": 4}}, {"batch": {"min": 5}}, False),
        ({"batch": {"max": 4}}, {"batch": {"min": 4}}, True),
        ({"batch": {"max": 4}}, {"dims": ["num_tokens > 4"]}, False),
        ({"dims": ["width <= 128"]}, {"dims": ["width > 128"]}, False),
        ({"dims": ["width <= 128"]}, {"dims": ["rows > 128"]}, True),
        ({"bound": "memory"}, {"bound": "compute"}, False),
        ({"features": ["gqa"]}, {"without": ["gqa"]}, False),
        ({"dims": ["width * rows > 4"]}, {"dims": ["width * rows <= 4"]}, True),
    ],
)
def test_conditions_meet_unless_that_is_impossible(a: dict[str, object], b: dict[str, object], meets: bool) -> None:
    assert overlap(when(**a), when(**b)) is meets
    assert overlap(when(**b), when(**a)) is meets


_WHEN = st.fixed_dictionaries(
    {},
    optional={
        "target": st.lists(st.sampled_from(["cuda", "cpu"]), max_size=2),
        "dtype": st.lists(st.sampled_from(["bfloat16", "float16", "float32"]), max_size=2),
        "batch": st.sampled_from([{"max": 1}, {"max": 4}, {"min": 2, "max": 6}, {"min": 5}, {"min": 3, "max": 3}]),
        "dims": st.lists(st.sampled_from(["width <= 64", "width > 64", "width % 8 == 0", "width == 40"]), max_size=2),
        "features": st.lists(st.sampled_from(["gqa", "qk_norm"]), max_size=1),
        "without": st.lists(st.sampled_from(["gqa", "qk_norm"]), max_size=1),
    },
)  # fmt: skip
_SITUATION = st.builds(
    lambda target, dtype, tokens, width, features: Situation(
        target=target, arch="sm_90" if target is Target.CUDA else "x86_64", dtype=dtype, bound="memory",
        dims={"num_tokens": tokens, "width": width}, features=frozenset(features),
    ),
    st.sampled_from(list(Target)), st.sampled_from([DType.BFLOAT16, DType.FLOAT32]), st.integers(1, 10),
    st.sampled_from([8, 40, 64, 65, 72]), st.lists(st.sampled_from(["gqa", "qk_norm"]), max_size=2),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(_WHEN, _WHEN, _SITUATION)
def test_a_situation_that_both_hold_in_is_an_overlap(
    a: dict[str, object], b: dict[str, object], situation: Situation
) -> None:
    one, other = when(**a), when(**b)
    if applies(one, situation).holds and applies(other, situation).holds:
        assert overlap(one, other)
