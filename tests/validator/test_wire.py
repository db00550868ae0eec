from __future__ import annotations

import os
import socket

import pytest

from validator.worker.wire import BrokenChannel, Channel, ForgedFrame


def pair(key: bytes = b"k" * 32) -> tuple[Channel, Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    judge, worker = Channel(ours, "judge"), Channel(theirs, "worker")
    judge.rekey(key)
    worker.rekey(key)
    return judge, worker, ours


def test_messages_arrive_in_order_both_ways() -> None:
    judge, worker, _ = pair()
    for i in range(3):
        judge.send({"n": i})
        worker.send({"m": i})
    assert [worker.receive(1)[0]["n"] for _ in range(3)] == [0, 1, 2]
    assert [judge.receive(1)[0]["m"] for _ in range(3)] == [0, 1, 2]


def test_descriptors_travel_with_their_message() -> None:
    judge, worker, _ = pair()
    reader, writer = os.pipe()
    judge.send({"op": "map"}, [reader])
    message, (received,) = worker.receive(1)
    os.write(writer, b"x")
    assert message == {"op": "map"}
    assert os.read(received, 1) == b"x"


def test_a_frame_with_another_key_is_refused() -> None:
    judge, worker, _ = pair()
    worker.rekey(b"z" * 32)
    worker.send({"seconds": 0})
    with pytest.raises(ForgedFrame):
        judge.receive(1)


def test_a_frame_that_is_repeated_is_refused() -> None:
    ours, theirs = socket.socketpair()
    recorder, forwarded = socket.socketpair()
    worker, judge = Channel(theirs, "worker"), Channel(forwarded, "judge")
    worker.send({"seconds": 1})
    frame = ours.recv(4096)
    recorder.sendall(frame)
    assert judge.receive(1)[0] == {"seconds": 1}
    recorder.sendall(frame)
    with pytest.raises(ForgedFrame):
        judge.receive(1)


def test_a_frame_is_not_accepted_as_one_of_the_other_direction() -> None:
    ours, theirs = socket.socketpair()
    judge, echo = Channel(ours, "judge"), theirs
    judge.send({"op": "call"})
    echo.sendall(echo.recv(4096))
    with pytest.raises(ForgedFrame):
        judge.receive(1)


@pytest.mark.parametrize("garbage", [b"x" * 100, b"\xff" * 36, b"\0" * 36 + b"{}"])
def test_garbage_is_refused(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(garbage)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenChannel):
        Channel(ours, "judge").receive(1)


def test_half_a_frame_times_out() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        Channel(ours, "judge").receive(0.05)


def test_a_closed_end_is_noticed_at_once() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = Channel(ours, "judge")
    with pytest.raises(BrokenChannel):
        channel.receive(1)
    with pytest.raises(BrokenChannel):
        channel.send({"a": 1})
