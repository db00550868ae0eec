"""The leak check finds code that survived, and lets two people say the same thing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from generator.leak import find_leaks, longest_run, tokens

REFERENCE = """
// Each warp reads one row of the weights.
for (int k = lane * 8; k < hidden_size; k += 256) {
  float4 w = ldg_stream(reinterpret_cast<const float4*>(row + k));
  acc = fma_pairs(acc, w, x_frag[k / 256]);
}
"""


def test_a_copied_statement_is_found_whatever_its_layout() -> None:
    text = "Do it so:  FOR(int k=lane*8;\n k<hidden_size;k += 256) and then go on."
    leaks = find_leaks(REFERENCE, text)
    assert len(leaks) == 1
    assert leaks[0].shared.startswith("FOR(int k=lane*8;")
    assert text[leaks[0].offset :].startswith("FOR(")


def test_a_copied_call_inside_prose_is_found() -> None:
    assert find_leaks(REFERENCE, "accumulate as acc = fma_pairs(acc, w, x_frag[k / 256]) in registers")


def test_a_short_plain_phrase_in_common_is_no_leak() -> None:
    assert find_leaks(REFERENCE, "Let each warp reads one row of the weights. That is enough.") == []


def test_a_long_sentence_of_a_comment_is_a_leak() -> None:
    sentence = "the last block to arrive adds the partial sums in a fixed order so that runs agree bit for bit"
    assert find_leaks(f"// {sentence}\n", f"Know that {sentence}, always.")


def test_prose_about_the_idea_is_no_leak() -> None:
    text = "Give every warp one row and let each lane read sixteen bytes at a time, past the first-level cache."
    assert find_leaks(REFERENCE, text) == []


@given(st.integers(0, 20), st.integers(8, 30), st.text(alphabet="qwz ", max_size=30))
def test_any_run_of_code_tokens_put_into_any_text_is_found(start: int, length: int, around: str) -> None:
    code = tokens(REFERENCE[REFERENCE.index("for") :])
    piece = " ".join(code[start : start + length])
    if len(tokens(piece)) >= 8:
        assert find_leaks(REFERENCE, f"{around} {piece} {around}")


def test_the_longest_run_is_counted_in_tokens() -> None:
    assert longest_run(["a b c d e f"], "x c d e y") == 3
    assert longest_run(["a b"], "x") == 0
