"""The judge's side: start a supervisor, open residents one after another, ask them to run, learn how they ended."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import mmap
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from kb.dtype import Target
from kb.manifest import Finding
from runtime.kernel import Compiled
from validator.arena import Layout
from validator.sandbox import Limits
from validator.worker.late_inputs import LateInputs
from validator.worker.shared_memory import Dirtying
from validator.worker.supervisor import LOST_CHANNEL
from validator.worker.wire import BrokenChannel, Channel

_F_ADD_SEALS, _SEAL_SHRINK_GROW = 1033, 0x0001 | 0x0002 | 0x0004  # SEAL, SHRINK, GROW
_START_SECONDS = 120.0


class WorkerFailure(Exception):  # noqa: N818 - a fact about the candidate, told as a finding
    """The resident is gone or refused; ``finding`` says how, in words for the candidate's author."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Worker:
    """A supervisor process for one target. A context manager; serves any number of residents, one at a time.

    ``patient``: OpenMP's threads sleep while they wait instead of spinning, which is kinder to whatever else runs but
    not how a kernel is deployed; ask for the opposite where time is measured.
    """

    def __init__(self, target: Target, *, namespaces: bool = True, patient: bool = True) -> None:
        ours, theirs = socket.socketpair()
        self.target = target
        self._namespaces = namespaces
        self._channel = Channel(ours, "judge")
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        if patient:
            environment["OMP_WAIT_POLICY"] = "passive"
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *_search_path()])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "validator.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt at the keyboard is for the judge, which then hangs up
        )
        theirs.close()
        self._channel.send({"target": target.value})
        self._started = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, *, readable: Sequence[Path] = (), limits: Limits | None = None, namespaces: bool = True) -> Resident:
        """Fork a resident that may read ``readable`` besides the system. Raises WorkerFailure."""
        self._await_start()
        cuda = self.target is Target.CUDA
        if limits is None:  # the driver reserves terabytes of addresses, and a Triton baseline writes its cache
            limits = Limits(memory_bytes=None, file_bytes=1 << 30, open_files=4096) if cuda else Limits()
        return Resident(
            self._channel,
            {
                "op": "open",
                "kind": "cuda" if cuda else "kernel",
                "device": self.target.value,
                "namespaces": self._namespaces and namespaces,
                "limits": asdict(limits),
                "readable": [str(p) for p in readable],
            },
        )

    def close(self) -> None:
        """Hang up and wait; the supervisor ends its resident first."""
        self._channel.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _await_start(self) -> None:
        if not self._started:
            try:
                self._channel.receive(_START_SECONDS)
            except (BrokenChannel, TimeoutError):
                raise RuntimeError("the worker did not start; run with --debug and look at its output above") from None
            self._started = True


class SharedMemory:
    """A sealed block of memory both sides map: neither can shrink it under the other. ``tensor`` is uint8."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.descriptor = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, nbytes)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SHRINK_GROW)
        self._map = mmap.mmap(self.descriptor, nbytes)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def close_descriptor(self) -> None:
        """Once the other side has it, the mapping keeps the memory alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close_descriptor()


class Resident:
    """One confined process and what it holds. Every method raises WorkerFailure once it has ended."""

    def __init__(self, channel: Channel, request: Mapping[str, Any]) -> None:
        self._channel = channel
        self._open = True
        self._ended: WorkerFailure | None = None
        channel.send(dict(request))
        try:
            reply = self._receive(60)
        except WorkerFailure:
            self.close()
            raise
        self.layers: tuple[str, ...] = tuple(reply["layers"])
        # Only now, when the resident exists and has no part in it, is the key drawn.
        key = secrets.token_bytes(32)
        channel.send({"key": key.hex()})
        channel.rekey(key)

    def __enter__(self) -> Resident:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended is not None or not self._open

    def warm(self, timeout: float = 60) -> None:
        """Touch the device, before any candidate is loaded."""
        self._ask({"op": "warm"}, timeout)

    def share(self, nbytes: int, timeout: float = 30) -> tuple[int, torch.Tensor]:
        """A new arena of ``nbytes``: its number and its memory here (uint8)."""
        memory = SharedMemory(nbytes)
        reply = self._ask({"op": "map", "nbytes": nbytes}, timeout, [memory.descriptor])
        memory.close_descriptor()
        return int(reply["arena"]), memory.tensor

    def load(self, compiled: Compiled, timeout: float = 30) -> tuple[int, dict[str, Any]]:
        """Load a compiled candidate: its number and, on CUDA, its entries' resources. Runs what runs at loading."""
        reply = self._ask({"op": "load", "compiled": base64.b64encode(pickle.dumps(compiled)).decode()}, timeout)
        return int(reply["kernel"]), reply["resources"]

    def dirty(self, dirtying: Dirtying, timeout: float = 30) -> bool:
        """Fill shared memory as ``dirtying`` says before every call until the next ``drop``; whether that works."""
        request = {"op": "dirty", "dirtying": base64.b64encode(pickle.dumps(dirtying)).decode()}
        return bool(self._ask(request, timeout)["runs"])

    def late(self, call: int, inputs: LateInputs, timeout: float) -> int | None:
        """Run a bound call behind a kernel that brings its inputs late; the offset of a byte it wrote before that."""
        request = {"op": "late", "call": call, "inputs": base64.b64encode(pickle.dumps(inputs)).decode()}
        early = self._ask(request, timeout)["early"]
        return None if early is None else int(early)

    def bind(self, kernel: int, arena: int, layout: Layout, scalars: Mapping[str, float], timeout: float = 30) -> int:
        """Bind the kernel to the buffers of an arena: the call's number."""
        slots = [asdict(slot) for slot in layout.slots]
        request = {"op": "bind", "kernel": kernel, "arena": arena, "slots": slots, "scalars": dict(scalars)}
        return int(self._ask(request, timeout)["call"])

    def call(self, calls: Sequence[int], timeout: float, *, graph: bool = False, freeze: bool = True) -> float:
        """Run bound calls in order and leave the process stopped; seconds by the supervisor's clock.

        Without ``freeze`` the process runs on: for a call whose only purpose is that the next one finds it warm.
        """
        request = {"op": "call", "calls": list(calls), "graph": graph, "freeze": freeze}
        return float(self._ask(request, timeout)["seconds"])

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Any other operation."""
        return self._ask(dict(request), timeout)

    def drop(self, timeout: float = 30) -> None:
        """Forget all kernels, calls and arenas, to free their memory."""
        self._ask({"op": "drop"}, timeout)

    def close(self) -> None:
        """End the process. Safe to call twice and after a failure."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(BrokenChannel, TimeoutError):
            self._channel.send({"op": "close"})
            self._channel.rekey(b"\0" * 32)
            self._channel.receive(30)

    def _ask(self, request: dict[str, Any], timeout: float, descriptors: Sequence[int] = ()) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        try:
            self._channel.send({**request, "timeout": timeout}, descriptors)
        except BrokenChannel:
            raise self._fail(_finding({"reason": "channel"})) from None
        # The supervisor enforces the limit; the margin is for its own work of killing and reporting.
        reply = self._receive(timeout + 30)
        if "error" in reply:
            code = {"CompileError": "compile-error", "LoadError": "load-error"}.get(reply["error"], "launch-error")
            raise WorkerFailure(Finding(code=code, message=f"{request['op']}: {reply['message'] or reply['error']}"))
        return reply

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            reply, extra = self._channel.receive(timeout)
        except TimeoutError:
            raise self._fail(_finding({"reason": "channel"})) from None
        except BrokenChannel:
            raise self._fail(_finding({"reason": "channel"})) from None
        for descriptor in extra:
            os.close(descriptor)
        if "died" in reply:
            raise self._fail(_finding(reply["died"]))
        return reply

    def _fail(self, finding: Finding) -> WorkerFailure:
        self._ended = WorkerFailure(finding)
        return self._ended


def _finding(how: Mapping[str, Any]) -> Finding:
    op = how.get("op", "")
    details = {k: v for k, v in how.items() if k != "reason"}
    where = {"load": "while it was loaded", "call": "during a call"}.get(op, f"at '{op}'" if op else "")
    match how["reason"]:
        case "timeout":
            text = f"did not finish within {how['limit']:g} s and was killed"
            return Finding(code="timed-out", message=text, details=details)
        case "exit" if how["code"] == LOST_CHANNEL:
            return Finding(code="stopped-answering", message=f"closed its descriptors {where}", details=details)
        case "exit":
            text = f"the process ended itself with status {how['code']} {where}; a kernel must return"
            return Finding(code="exited-early", message=text, details=details)
        case "signal" if how["signal"] == signal.SIGSYS:
            text = f"a forbidden system call {where} (socket, program, process, tracing or the like)"
            return Finding(code="forbidden-system-call", message=text, details=details)
        case "signal" if how["signal"] in (signal.SIGKILL, signal.SIGXCPU):
            text = f"killed by a limit on processor time or memory {where}"
            return Finding(code="limit-exceeded", message=text, details=details)
        case "signal":
            name = signal.Signals(how["signal"]).name
            return Finding(code="crashed", message=f"crashed with {name} {where}", details=details)
        case "forged":
            return Finding(code="forged-reply", message=f"wrote to the result channel {where}", details=details)
        case "silent" | "unstoppable":
            text = f"stopped answering {where}"
            return Finding(code="stopped-answering", message=text, details=details)
    return Finding(code="broken-channel", message="the worker's channel broke", details=details)


def _search_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


__all__ = ["Limits", "Resident", "SharedMemory", "Worker", "WorkerFailure"]
