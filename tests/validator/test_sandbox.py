from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from validator.sandbox import Limits, Profile, available_layers, confine, fork_into_namespaces
from validator.sandbox.kernel_calls import numbers
from validator.sandbox.probe import LAYERS
from validator.sandbox.seccomp import allow_list, cuda_list, kill_list


def confined(attempt: Callable[[], object], profile: Profile | None = None) -> tuple[list[str], str]:
    """Layers active in a confined process, and what became of ``attempt`` in it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        layers: tuple[str, ...] = ()
        try:
            chosen = profile or Profile("kernel", Limits(memory_bytes=4 << 30))
            layers = confine(chosen, fork_into_namespaces())
            os.write(writer, json.dumps([list(layers), "about to"]).encode() + b"\n")
            attempt()
            outcome = "done"
        except BaseException as error:
            outcome = type(error).__name__
        os.write(writer, json.dumps([list(layers), outcome]).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    layers_, outcome_ = json.loads(lines[-1])
    return layers_, "killed" if outcome_ == "about to" else outcome_


def test_every_layer_is_reported_as_active_or_with_what_it_takes() -> None:
    layers = available_layers()
    assert set(layers) == set(LAYERS)
    assert all(layers.values())


def test_the_layers_probed_are_the_layers_a_worker_gets() -> None:
    active = {name for name, state in available_layers().items() if state == "active"}
    assert set(confined(lambda: None)[0]) == active


def need(layer: str) -> None:
    if available_layers()[layer] != "active":
        pytest.skip(f"{layer} is not available here: {available_layers()[layer]}")


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: socket.socket(socket.AF_INET).close(),
        lambda: socket.socketpair(),
        lambda: os.execv("/bin/true", ["true"]),
        os.fork,
        lambda: os.kill(1, 0),
    ],
    ids=["socket", "socketpair", "exec", "fork", "kill"],
)
def test_a_call_no_kernel_needs_ends_the_process(attempt: Callable[[], object]) -> None:
    need("seccomp")
    assert confined(attempt)[1] == "killed"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", str(Path.home()), str(Path(__file__).parent)])
def test_nothing_can_be_written(folder: str) -> None:
    need("landlock")
    assert confined(lambda: Path(folder, "probe").write_text("x"))[1] in ("PermissionError", "OSError")


def test_only_what_was_named_can_be_read(tmp_path: Path) -> None:
    need("landlock")
    (tmp_path / "secret").write_text("x")
    profile = Profile("kernel", Limits(memory_bytes=4 << 30), readable=(tmp_path,))
    assert confined((tmp_path / "secret").read_text)[1] == "PermissionError"
    assert confined((tmp_path / "secret").read_text, profile)[1] == "done"


def test_it_is_the_first_process_of_its_own_tree() -> None:
    need("pid-namespace")

    def check() -> None:
        assert os.getpid() == 1
        assert os.getuid() == 65534

    assert confined(check)[1] == "done"


def test_threads_still_start() -> None:
    import threading

    def work() -> None:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

    assert confined(work)[1] == "done"


def test_memory_beyond_the_limit_is_refused() -> None:
    assert confined(lambda: bytearray(8 << 30))[1] == "MemoryError"


def test_filters_are_well_formed_and_end_in_a_verdict() -> None:
    for program in (allow_list(), kill_list(), kill_list(starts_program=True), cuda_list()):
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096
        assert program[-8:-6] == b"\x06\x00"  # the last instruction returns


def test_tables_of_system_calls_agree_with_the_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    known = dict(
        line.split()[1:3]
        for line in header.read_text().splitlines()
        if line.startswith("#define __NR_") and len(line.split()) == 3
    )
    calls, _ = numbers()
    assert {name: int(known[f"__NR_{name}"]) for name in calls if f"__NR_{name}" in known} == {
        name: number for name, number in calls.items() if f"__NR_{name}" in known
    }
