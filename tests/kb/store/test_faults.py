"""Killed writers, rival writers and full disks leave a store that verifies clean."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kb.store import KernelStore
from tests.kb.store.writer import write_kernels

ROOT = Path(__file__).resolve().parents[3]
WRITER = "tests.kb.store.writer"
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def _spawn(root: Path, first: int, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", WRITER, str(root), str(first), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENV)
    assert process.stdout is not None
    process.stdout.readline()  # imports are done; from here on it writes
    return process


def test_two_hundred_kills_at_random_points_leave_the_store_whole(tmp_path: Path) -> None:
    # A fork keeps the imports, so that the time goes into writes that are cut short, not into start-up.
    chance = random.Random(7)
    store = KernelStore(tmp_path)
    started = time.monotonic()
    write_kernels(tmp_path, 900_000, 5)
    a_write = (time.monotonic() - started) / 5  # kills fall within the first few writes on any machine
    for kill in range(200):
        child = os.fork()
        if child == 0:
            write_kernels(tmp_path, kill * 1000, 1000)
            os._exit(0)
        time.sleep(chance.uniform(0.0, 5 * a_write))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if kill % 50 == 49:
            assert store.verify() == []
    written = len(list(store.folders()))
    assert written > 50, "the kills came before anything was written: the test would prove nothing"
    store.collect(max_age=0)
    assert list((tmp_path / ".incoming").iterdir()) == []
    assert len(list(store.folders())) == written


def test_eight_writers_of_overlapping_kernels_lose_nothing(tmp_path: Path) -> None:
    writers = [_spawn(tmp_path, first=10 * (i // 2), count=20) for i in range(8)]
    assert [w.wait(timeout=120) for w in writers] == [0] * 8
    store = KernelStore(tmp_path)
    assert store.verify() == []
    entries = store.entries()[0]
    assert len(entries) == 50
    revoked = {e.manifest.verdicts[0].seed for e in entries if e.manifest.status == "revoked"}
    assert revoked == {i for i in range(50) if i % 3 == 0}


def test_a_file_size_limit_during_a_write_leaves_the_store_as_it_was(tmp_path: Path, make) -> None:
    store = KernelStore(tmp_path)
    store.admit(*make(0))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            store.admit(*make(1))
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.verify() == []
    assert len(list(store.folders())) == 1
    assert list((tmp_path / ".incoming").iterdir()) == []


FULL_DISK = """
mount -t tmpfs -o size=256k none {disk} || exit 9
{python} -m {writer} {disk} 0 500 > {tmp}/out 2> {tmp}/err
echo $? > {tmp}/code
{python} -m kb kernels verify --store {disk} --json > {tmp}/verify
"""


def test_a_full_disk_is_an_error_and_the_store_stays_whole(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed: no small disk can be made here")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = FULL_DISK.format(disk=disk, python=sys.executable, writer=WRITER, tmp=tmp_path)
    flags = ["-m"] if os.geteuid() == 0 else ["-rm"]
    done = subprocess.run([unshare, *flags, "bash", "-c", script], capture_output=True, env=ENV, check=False)
    if not (tmp_path / "code").exists():
        pytest.skip(f"no private mount is allowed here: {done.stderr.decode().strip()}")
    assert (tmp_path / "code").read_text().strip() == "1"
    assert "No space left on device" in (tmp_path / "err").read_text()
    assert '"damaged": []' in (tmp_path / "verify").read_text()
    assert '"entries": 0' not in (tmp_path / "verify").read_text()
