"""The trusted process between judge and candidate: forks a confined resident, relays to it, times it, kills it."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validator.sandbox import Limits, Profile, confine, fork_into_namespaces
from validator.worker.resident import reside
from validator.worker.wire import BrokenChannel, Channel, ForgedFrame

_STOP_SECONDS = 2.0
# How a resident ends whose channel is gone while its supervisor still listens: the candidate closed it.
LOST_CHANNEL = 71


def serve(descriptor: int) -> None:
    """Serve the judge at the other end of ``descriptor`` until it hangs up."""
    channel = Channel(socket.socket(fileno=descriptor), "worker")
    try:
        hello, _ = channel.receive()
        _preload(hello["target"])
        channel.send({"ready": True})
        while True:
            request, _ = channel.receive()
            if request["op"] == "open":
                _supervise(channel, request)
            else:
                channel.send({"error": "protocol", "message": f"nothing is open for '{request['op']}'"})
    except BrokenChannel:
        return


def _preload(target: str) -> None:
    """Import what residents need once; they are forks, and confined too tightly to import much themselves."""
    import torch

    import runtime.kernel  # noqa: F401

    if target == "cpu":
        import numpy  # noqa: F401

        torch.ones(1)
    gc.freeze()


def _supervise(channel: Channel, request: dict[str, Any]) -> None:
    """One resident, from fork to death."""
    child = _Child(request)
    try:
        layers = child.hello()
        channel.send({"layers": layers})
        key, _ = channel.receive()
        channel.rekey(bytes.fromhex(key["key"]))
        while True:
            message, descriptors = channel.receive()
            if message["op"] == "close":
                break
            reply = child.ask(message, descriptors, message.pop("timeout"), channel)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(reply)
    except _Ended as ended:
        channel.send({"died": ended.how})
        channel.receive()  # the judge acknowledges with "close"
    finally:
        child.kill()
    channel.rekey(b"\0" * 32)
    channel.send({"closed": True})


class _Ended(Exception):  # noqa: N818
    """The resident is gone."""

    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__(str(how))
        self.how = how


class _Child:
    """The resident as its supervisor sees it."""

    def __init__(self, request: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        number_reader, number_writer = os.pipe()
        self._stops = request["kind"] == "kernel"
        self._shell = os.fork()
        if self._shell == 0:
            ours.close()
            os.close(number_reader)
            _become_resident(theirs, number_writer, request)
        theirs.close()
        os.close(number_writer)
        self._channel = Channel(ours, "judge")
        self._socket = ours
        with os.fdopen(number_reader, "rb") as pipe:
            number = pipe.read()
        self._pid = int(number) if number else 0
        self._handle = -1
        with contextlib.suppress(OSError):
            self._handle = os.pidfd_open(self._pid) if self._pid else -1
        self._status: int | None = None

    def hello(self) -> list[str]:
        """The resident's word on its layers, given before any candidate is near it."""
        try:
            message, _ = self._channel.receive(30)
        except (BrokenChannel, TimeoutError):
            raise _Ended(self._how("while it was being confined")) from None
        return list(message["layers"])

    def ask(
        self, message: dict[str, Any], descriptors: Sequence[int], timeout: float, judge: Channel
    ) -> dict[str, Any]:
        """One request and its reply, with ``seconds`` measured here. Raises _Ended when none comes in time."""
        token = secrets.token_hex(16)
        self._signal(signal.SIGCONT)
        try:
            started = time.perf_counter_ns()
            self._channel.send({**message, "token": token}, descriptors)
            waiting: list[Any] = [self._socket, judge]
            ready, _, _ = select.select(waiting, [], [], timeout)
            elapsed = time.perf_counter_ns() - started
            if judge in ready:
                raise BrokenChannel("the judge hung up")
            if not ready:
                raise TimeoutError
            reply, extra = self._channel.receive(5)
        except TimeoutError:
            self.kill()
            raise _Ended({"reason": "timeout", "op": message["op"], "limit": timeout}) from None
        except ForgedFrame:
            self.kill()
            raise _Ended({"reason": "forged", "op": message["op"]}) from None
        except BrokenChannel:
            if select.select([judge], [], [], 0)[0]:
                raise  # nobody is left to tell
            raise _Ended(self._how(message["op"])) from None
        for descriptor in extra:
            os.close(descriptor)
        if reply.pop("token", None) != token:
            self.kill()
            raise _Ended({"reason": "forged", "op": message["op"]})
        if self._stops and message.get("freeze", True):
            self._stop()
        return {**reply, "seconds": elapsed / 1e9}

    def kill(self) -> None:
        """End the resident and everything it started. Waits until the kernel says it is gone."""
        self._signal(signal.SIGKILL)
        if self._status is None:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                if self._reaped():
                    break
                time.sleep(0.002)
            else:
                with contextlib.suppress(OSError):
                    os.kill(self._shell, signal.SIGKILL)
                    os.waitpid(self._shell, 0)
                self._status = signal.SIGKILL
        if self._pid:
            # Without a PID namespace what it started lives on in its session; with one there is nobody left.
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._socket.close()

    def _how(self, op: str) -> dict[str, Any]:
        """Why the resident stopped answering, by the kernel's account."""
        deadline = time.monotonic() + 2
        while not self._reaped():
            if time.monotonic() > deadline:
                self.kill()
                return {"reason": "silent", "op": op}
            time.sleep(0.002)
        assert self._status is not None
        if os.WIFSIGNALED(self._status):
            return {"reason": "signal", "signal": os.WTERMSIG(self._status), "op": op}
        return {"reason": "exit", "code": os.WEXITSTATUS(self._status), "op": op}

    def _reaped(self) -> bool:
        if self._status is None:
            done, status = os.waitpid(self._shell, os.WNOHANG)
            if done:
                self._status = status
        return self._status is not None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)
            elif self._pid and self._status is None:
                os.kill(self._pid, number)

    def _stop(self) -> None:
        """Stop every thread and see them stopped."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            if all(state in "TtZX" for state in _thread_states(self._pid)):
                return
            time.sleep(0.0002)
        self.kill()
        raise _Ended({"reason": "unstoppable", "op": "call"})


def _become_resident(sock: socket.socket, number_writer: int, request: dict[str, Any]) -> None:
    """In the fork: leave everything behind and serve. Never returns."""
    code = 70
    try:
        _keep_only(sock.fileno(), number_writer)
        profile = Profile(
            kind=request["kind"],
            limits=Limits(**request["limits"]),
            readable=tuple(Path(p) for p in request["readable"]),
        )

        def tell_number(child: int) -> None:
            sock.close()  # only the resident's copy may keep it open: its end must be seen
            os.write(number_writer, str(child).encode())
            os.close(number_writer)

        wanted = bool(request["namespaces"])
        left = fork_into_namespaces(tell_number, namespaces_wanted=wanted, pid=profile.kind != "cuda")
        os.close(number_writer)
        channel = Channel(sock, "worker")
        channel.send({"layers": list(confine(profile, left))})
        reside(channel, request["device"])
        code = LOST_CHANNEL
    except BaseException:  # the fork must never return into the supervisor's loop
        code = 70
    finally:
        os._exit(code)


def _keep_only(*descriptors: int) -> None:
    """Close every descriptor but these; standard streams become /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    keep = sorted({0, 1, 2, *descriptors})
    for low, high in zip(keep, [*keep[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)


def _thread_states(pid: int) -> str:
    states = ""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError):
                states += (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return states
