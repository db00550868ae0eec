"""Sets of integers behave as the sets they stand for."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kb.diff.integers import Integers

UNIVERSE = range(200)
small = st.builds(
    Integers, st.integers(0, 60), st.one_of(st.just(math.inf), st.integers(0, 60)), st.sampled_from([1, 2, 3, 4, 6, 8])
)


def members(numbers: Integers) -> set[int]:
    return {n for n in UNIVERSE if n in numbers}


@given(small, small)
def test_equality_is_equality_of_the_sets(a: Integers, b: Integers):
    assert (a == b) == (members(a) == members(b))


@given(small, small)
def test_order_is_inclusion(a: Integers, b: Integers):
    assert (a <= b) == (members(a) <= members(b))


@given(small, small)
def test_and_is_intersection(a: Integers, b: Integers):
    assert members(a & b) == members(a) & members(b)


@given(small)
def test_emptiness_is_seen(a: Integers):
    assert a.is_empty == (not members(a))
