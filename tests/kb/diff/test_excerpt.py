"""Long prose is cut to the words around what changed, short prose and rewrites are shown whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kb.diff.excerpt import excerpts

LONG = " ".join(f"word{i}" for i in range(60))
prose = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon"]), max_size=80).map(" ".join)


def test_one_changed_word_is_shown_with_its_neighbours():
    before, after = excerpts(LONG, LONG.replace("word30", "other"))
    assert before == "… word25 word26 word27 word28 word29 word30 word31 word32 word33 word34 word35 …"
    assert after == before.replace("word30", "other")


def test_changes_at_both_ends_are_two_excerpts():
    before, after = excerpts(LONG, LONG.replace("word0 ", "first ").replace("word59", "last"))
    assert before.split(" … ") == ["word0 word1 word2 word3 word4 word5", "word54 word55 word56 word57 word58 word59"]
    assert after.startswith("first word1")
    assert after.endswith("word58 last")


def test_short_and_rewritten_texts_are_shown_whole():
    assert excerpts("a\n b", "a c") == ("a b", "a c")
    rewritten = " ".join(f"new{i}" for i in range(60))
    assert excerpts(LONG, rewritten) == (LONG, rewritten)


@given(prose, prose)
def test_equal_excerpts_only_come_from_equal_words(before: str, after: str):
    left, right = excerpts(before, after)
    if before.split() != after.split():
        assert left != right
