"""Text is handed out as soon as it cannot change any more, never broken and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.text import StopStrings, TextStream
from runtime.engine.tokenizer import Detokenizer

END = 256


class Bytes:
    """A tokenizer whose tokens are bytes; 256 is special and has no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(t for t in token_ids if t < END).decode(errors="replace")


class Words:
    """A tokenizer that, like SentencePiece, drops the space before the first token of what it decodes."""

    words = ("▁one", "▁two", "▁three", "s")

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.words[t] for t in token_ids).replace("▁", " ").removeprefix(" ")


@given(st.text(max_size=30), st.text(max_size=4))
def test_pieces_add_up_to_the_text_and_none_is_broken(text: str, prompt: str) -> None:
    detokenizer = Detokenizer(Bytes(), list(prompt.encode()))
    pieces = [detokenizer.add(token) for token in text.encode()]
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + detokenizer.flush() == text


def test_a_character_comes_out_with_its_last_byte() -> None:
    detokenizer = Detokenizer(Bytes(), [])
    assert [detokenizer.add(token) for token in "é🎈".encode()] == ["", "é", "", "", "", "🎈"]


def test_bytes_that_never_make_a_character_do_not_hold_the_stream_up_for_ever() -> None:
    detokenizer = Detokenizer(Bytes(), [])
    pieces = [detokenizer.add(0x80) for _ in range(40)]
    assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 40
    assert any(pieces)


def test_what_is_left_at_the_end_is_flushed() -> None:
    detokenizer = Detokenizer(Bytes(), [])
    assert detokenizer.add(0xC3) == ""
    assert detokenizer.flush() == "\ufffd"


def test_the_space_before_a_word_is_kept() -> None:
    detokenizer = Detokenizer(Words(), [0])
    assert [detokenizer.add(t) for t in (1, 2, 3, 0)] == [" two", " three", "s", " one"]


def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_output() -> None:
    detokenizer = Detokenizer(Bytes(), [0xC3])
    assert detokenizer.add(0xA9) + detokenizer.add(ord("!")) + detokenizer.flush() == "é!"


def test_a_stop_string_ends_the_text_before_it() -> None:
    stop = StopStrings(("\n\n", "END"))
    assert stop.add("abE") == ("ab", False)
    assert stop.add("N") == ("", False)
    assert stop.add("x") == ("ENx", False)
    assert stop.add("yEND of it") == ("y", True)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert StopStrings(("cd", "b")).add("abcd") == ("a", True)


@given(st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_streamed_text_equals_the_whole_cut_at_its_first_stop(text: str, stops: list[str]) -> None:
    stream = StopStrings(tuple(stops))
    shown = ""
    for i, character in enumerate(text):
        piece, met = stream.add(character)
        shown += piece
        if met:
            ends = [text[: i + 1].find(s) for s in stops if text[: i + 1].find(s) >= 0]
            assert shown == text[: min(ends)]
            return
    assert shown + stream.flush() == text
    assert not any(s in text for s in stops)


def test_a_token_that_ends_the_text_is_hidden_and_lets_go_of_what_was_held() -> None:
    stream = TextStream(Bytes(), [], ("xyz",))
    assert stream.add(ord("x"), hidden=False, last=False) == ("", False)
    assert stream.add(END, hidden=True, last=True) == ("x", False)
    assert stream.text == "x"


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None, [1], ())
    assert stream.add(7, hidden=False, last=True) == ("", False)
