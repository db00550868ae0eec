"""The journal survives what can happen to a file."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from generator.journal import Journal, JournalError


def test_events_read_back_in_order_with_their_keys_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"event": "a", "key": "1", "dims": {"z": 1, "a": 2}})
        journal.append({"event": "b", "key": "µ"})
    with Journal(path) as journal:
        assert [e["event"] for e in journal.events] == ["a", "b"]
        assert list(journal.events[0]["dims"]) == ["z", "a"]
        assert journal.find("b", "µ") == journal.events[1]
        assert journal.find("b", "1") is None


@pytest.mark.parametrize("torn", [b'{"event": "c"', b'{"event": "c"}', b'{"eve', b"\xff\xfe", b'{"event": "c"}x\n'])
def test_a_torn_last_line_is_cut_off_and_writing_goes_on(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"event": "a", "key": "1"})
    with path.open("ab") as file:
        file.write(torn)
    with Journal(path) as journal:
        assert [e["event"] for e in journal.events] == ["a"]
        journal.append({"event": "d", "key": "2"})
    with Journal(path) as journal:
        assert [e["event"] for e in journal.events] == ["a", "d"]


def test_damage_in_the_middle_is_an_error_not_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for i in range(3):
            journal.append({"event": "a", "key": str(i)})
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"1"', b'1"', 1))
    with pytest.raises(JournalError, match="damaged after byte"):
        Journal(path)
    assert len(path.read_bytes()) == len(content) - 1


def test_two_processes_cannot_hold_one_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path / "j")


def test_a_refused_write_leaves_the_journal_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append({"event": "a", "key": "1"})
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            with Journal(path) as journal:
                journal.append({"event": "b", "key": "x" * 200})
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with Journal(path) as journal:
        assert [e["event"] for e in journal.events] == ["a"]
