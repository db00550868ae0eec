"""The folder as provider: prompts out, replies in, by whoever answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from generator.providers.exchange import Exchange
from generator.providers.protocol import Ask, PendingError, ProviderError
from generator.providers.replay import Replay

ASK = Ask("round-1-lane-1", "the prefix\n", "the history\n", "abcdef012345" + "0" * 52)


def reply(folder: Path, text: str) -> None:
    (folder / "round-1-lane-1.reply.md").write_text(text)


def good(body: str = "the answer\n", prompt: str = "abcdef012345") -> str:
    return f"<!-- reply to {prompt} by model-x -->\n{body}<!-- end of reply -->\n"


def test_the_prompt_is_published_whole_with_instructions_beside_it(tmp_path: Path) -> None:
    with pytest.raises(PendingError, match=r"no reply yet.*round-1-lane-1\.reply\.md"):
        Exchange(tmp_path / "x").ask(ASK)
    text = (tmp_path / "x" / "round-1-lane-1.prompt.md").read_text()
    assert text == "<!-- prompt abcdef012345 -->\nthe prefix\nthe history\n"
    assert "end of reply" in (tmp_path / "x" / "README.md").read_text()
    assert len(list((tmp_path / "x").iterdir())) == 2


def test_a_reply_is_read_with_its_authors_name(tmp_path: Path) -> None:
    reply(tmp_path, good())
    completion = Exchange(tmp_path).ask(ASK)
    assert (completion.text, completion.model) == ("the answer\n", "model-x")


def test_half_a_reply_is_waited_for(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, wait=20, poll=0.01)
    reply(tmp_path, good()[:40])

    def finish() -> None:
        time.sleep(0.1)
        reply(tmp_path, good())

    writer = threading.Thread(target=finish)
    writer.start()
    assert exchange.ask(ASK).text == "the answer\n"
    writer.join()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("  \n", "the reply is empty"),
        ("the answer\n<!-- end of reply -->\n", "first line must be"),
        (good(prompt="ffffffffffff"), "answers prompt ffffffffffff, not abcdef012345"),
    ],
)
def test_a_wrong_reply_is_one_clear_error_and_stays_where_it_is(tmp_path: Path, content: str, message: str) -> None:
    reply(tmp_path, content)
    with pytest.raises(ProviderError, match=message):
        Exchange(tmp_path).ask(ASK)
    assert (tmp_path / "round-1-lane-1.reply.md").read_text() == content


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "round-1-lane-1.reply.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ProviderError, match="not UTF-8"):
        Exchange(tmp_path).ask(ASK)


def test_a_missing_or_unreadable_recording_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="not a readable transcript"):
        Replay.from_file(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(ProviderError, match="not a readable transcript"):
        Replay.from_file(tmp_path / "bad.jsonl")
    with pytest.raises(ProviderError, match="no recorded reply for round-1-lane-1"):
        Replay({}).ask(ASK)
