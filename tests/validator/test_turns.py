"""Turns on a device: checks side by side, a measurement alone, nothing kept by the dead."""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from kb.dtype import Target
from kb.manifest import GateName
from runtime.device import assumed_cuda_device
from validator.gates import GATES, Context, Options
from validator.judge import _turn
from validator.turns import Turns

PATIENCE = 20.0


def test_two_that_check_are_inside_together(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def check() -> None:
        with Turns(tmp_path, "cuda").shared():
            both.wait()

    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not both.broken
    assert not any(t.is_alive() for t in threads)


def test_who_measures_is_alone_and_waits_for_those_inside(tmp_path: Path) -> None:
    turns, order = Turns(tmp_path, "cuda"), []
    measuring = threading.Event()

    def measure() -> None:
        measuring.set()
        with turns.alone():
            order.append("measured")

    thread = threading.Thread(target=measure)
    with turns.shared():
        thread.start()
        assert measuring.wait(PATIENCE)
        thread.join(0.2)
        order.append("checked")
    thread.join(PATIENCE)
    assert order == ["checked", "measured"]


def test_newcomers_wait_behind_one_who_wants_to_measure(tmp_path: Path) -> None:
    turns, order = Turns(tmp_path, "cuda"), []

    def measure() -> None:
        with turns.alone():
            order.append("measured")

    def check() -> None:
        with turns.shared():
            order.append("newcomer")

    first, second = threading.Thread(target=measure), threading.Thread(target=check)
    with turns.shared():
        first.start()
        first.join(0.2)
        second.start()
        second.join(0.2)
        assert order == []
    for thread in (first, second):
        thread.join(PATIENCE)
    assert order == ["measured", "newcomer"]


def test_devices_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with Turns(tmp_path, "cuda").alone(), Turns(tmp_path, "cpu").alone():
        assert sorted(p.name for p in tmp_path.iterdir()) == ["cpu.door", "cpu.room", "cuda.door", "cuda.room"]


def _die_inside(folder: Path) -> None:
    with Turns(folder, "cuda").alone():
        os._exit(9)


def test_a_process_that_dies_inside_leaves_its_turn(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_inside, args=(tmp_path,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 9
    with Turns(tmp_path, "cuda").alone():
        pass


def test_every_gpu_has_turns_of_its_own(tmp_path: Path) -> None:
    """Under whatever ordinal a process sees it: the turn goes by the device, so another one need not wait."""
    gate = next(g for g in GATES if g.name is GateName.PERFORMANCE)
    for uuid in ("57b95ff6", "5aac3b36"):
        device = replace(assumed_cuda_device("sm_90"), uuid=uuid)
        context = SimpleNamespace(options=Options(turns=tmp_path), target=Target.CUDA, device=device)
        with _turn(gate, cast(Context, context)):
            assert (tmp_path / f"cuda-{uuid}.room").exists()
    assert {p.suffix for p in tmp_path.iterdir()} == {".door", ".room"}
    assert len(list(tmp_path.iterdir())) == 4
