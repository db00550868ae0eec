"""Narrowed and widened are claims about sets of situations; here they are checked against the sets themselves."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.condition import Situation, When, applies
from kb.diff.scope import Relation, compare, scope_of_conditions, scope_of_when
from kb.dtype import DType, Target
from kb.expr import Expr

_MACHINES = [(Target.CUDA, "sm_80"), (Target.CUDA, "sm_90"), (Target.CUDA, "sm_100"), (Target.CPU, "x86_64")]
SITUATIONS = [
    Situation(
        target=target,
        arch=arch,
        dtype=dtype,
        bound=bound,
        dims={"num_tokens": tokens, "head_dim": size, "num_heads": heads},
        features=features,
    )
    for (target, arch), dtype, bound, tokens, size, heads, features in product(
        _MACHINES,
        [DType.BFLOAT16, DType.FLOAT32],
        ["memory", "compute"],
        [1, 2, 8, 9],
        [64, 96, 128],
        [4, 64],
        [frozenset(), frozenset({"gqa"}), frozenset({"gqa", "qk_norm"})],
    )
]

arches = st.one_of(
    st.builds(lambda low: {"min": low}, st.sampled_from(["sm_80", "sm_90"])),
    st.builds(lambda high: {"max": high}, st.sampled_from(["sm_90", "sm_100"])),
    st.just({"any_of": ["x86_64"]}),
    st.just({"any_of": ["sm_90"], "max": "sm_80"}),
)
conditions = st.sampled_from(
    ["head_dim <= 96", "head_dim < 128", "64 <= head_dim", "head_dim % 64 == 0", "head_dim % 32 == 0", "head_dim == 64",
     "num_heads <= head_dim", "head_dim >= num_heads", "num_tokens > 1", "num_tokens % 2 == 0", "not head_dim == 96",
     "head_dim == 64 or num_heads == 4", "num_tokens <= 8 and head_dim >= 96", "1 < num_tokens <= 8"]
)  # fmt: skip
whens = st.fixed_dictionaries(
    {},
    optional={
        "target": st.lists(st.sampled_from(["cuda", "cpu"]), min_size=1, unique=True),
        "arch": arches,
        "dtype": st.lists(st.sampled_from(["bfloat16", "float32"]), min_size=1, unique=True),
        "batch": st.sampled_from([{"max": 1}, {"max": 8}, {"min": 2}, {"min": 2, "max": 8}]),
        "bound": st.sampled_from(["memory", "compute"]),
        "dims": st.lists(conditions, max_size=2),
        "features": st.lists(st.sampled_from(["gqa", "qk_norm"]), unique=True),
        "without": st.lists(st.sampled_from(["gqa", "qk_norm"]), unique=True),
    },
)


def holding(when: When) -> set[int]:
    """Indices of the situations in which ``when`` holds."""
    return {i for i, situation in enumerate(SITUATIONS) if applies(when, situation).holds is True}


def related(old: dict[str, Any], new: dict[str, Any]) -> Relation:
    return compare(*(scope_of_when(When.model_validate(w)) for w in (old, new)))


@settings(max_examples=150, deadline=None)
@given(whens, whens)
def test_no_claim_contradicts_the_situations(old: dict[str, Any], new: dict[str, Any]):
    before, after = (holding(When.model_validate(w)) for w in (old, new))
    match related(old, new):
        case Relation.EQUAL:
            assert after == before
        case Relation.NARROWED:
            assert after <= before
        case Relation.WIDENED:
            assert after >= before


@settings(max_examples=100, deadline=None)
@given(whens, whens)
def test_the_way_back_is_the_opposite(old: dict[str, Any], new: dict[str, Any]):
    opposite = {Relation.NARROWED: Relation.WIDENED, Relation.WIDENED: Relation.NARROWED}
    there = related(old, new)
    assert related(new, old) is opposite.get(there, there)


@settings(max_examples=60, deadline=None)
@given(whens, whens)
def test_another_condition_never_widens(old: dict[str, Any], more: dict[str, Any]):
    joined = {**old, **{k: v for k, v in more.items() if k not in old}}
    assert related(old, joined) in (Relation.EQUAL, Relation.NARROWED)


@pytest.mark.parametrize(
    ("old", "new", "relation"),
    [
        ({}, {}, "equal"),
        ({"batch": {"max": 8}}, {"batch": {"max": 4}}, "narrowed"),
        ({"batch": {"max": 8}}, {"batch": {"max": 16}}, "widened"),
        ({"batch": {"max": 8}}, {}, "widened"),
        ({"batch": {"max": 8}}, {"batch": {"min": 2, "max": 16}}, "shifted"),
        ({"batch": {"max": 8}}, {"dims": ["num_tokens <= 8"]}, "equal"),
        ({"batch": {"min": 1}}, {}, "equal"),
        ({"target": ["cuda"]}, {"target": ["cuda", "cpu"]}, "widened"),
        ({"target": ["cuda", "cpu"]}, {}, "equal"),
        ({"target": ["cuda"]}, {"target": ["cpu"]}, "shifted"),
        ({"arch": {"min": "sm_90"}}, {"arch": {"min": "sm_90"}, "target": ["cuda"]}, "equal"),
        ({"arch": {"min": "sm_80"}}, {"arch": {"min": "sm_90"}}, "narrowed"),
        ({"arch": {"any_of": ["sm_90"]}}, {"arch": {"min": "sm_80", "max": "sm_100"}}, "widened"),
        ({"dtype": ["bfloat16"]}, {"dtype": ["bfloat16", "float16", "float32"]}, "widened"),
        ({"dtype": ["bfloat16", "float16", "float32"]}, {}, "equal"),
        ({"features": ["gqa"]}, {"features": ["gqa", "qk_norm"]}, "narrowed"),
        ({"features": ["gqa"]}, {"without": ["gqa"]}, "shifted"),
        ({"features": ["gqa"], "without": ["gqa"]}, {"features": ["gqa"]}, "widened"),
        ({"dims": ["head_dim <= 128"]}, {"dims": ["128 >= head_dim"]}, "equal"),
        ({"dims": ["head_dim % 8 == 0"]}, {"dims": ["head_dim % 16 == 0"]}, "narrowed"),
        ({"dims": ["head_dim % 6 == 0"]}, {"dims": ["head_dim % 4 == 0"]}, "shifted"),
        ({"dims": ["a < b"]}, {"dims": ["b > a"]}, "equal"),
        ({"dims": ["a < b"]}, {"dims": ["a < b", "a > 4"]}, "narrowed"),
        ({"dims": ["a < b"]}, {"dims": ["a < 2 * b"]}, "unknown"),
        ({"dims": ["a < b"], "batch": {"max": 8}}, {"batch": {"max": 4}}, "unknown"),
        ({"dims": ["a < 4", "a > 8"]}, {"dims": ["a < 4"]}, "widened"),
        ({"batch": {"max": 8}, "dtype": ["bfloat16"]}, {"batch": {"max": 4}}, "shifted"),
    ],
)
def test_relations(old: dict[str, Any], new: dict[str, Any], relation: str):
    assert related(old, new).value == relation


def test_conditions_of_one_dim_are_tightened_together():
    scope = scope_of_conditions([Expr("a >= 3"), Expr("a <= 10"), Expr("a % 8 == 0")])
    assert compare(scope, scope_of_conditions([Expr("a == 8")])) is Relation.EQUAL
