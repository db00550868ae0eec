"""A small server that speaks the Messages API on the loopback interface, streaming and faults included."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """What the server does, request by request; the last step repeats. ``seen`` holds every request's body."""

    steps: list[dict[str, Any]]
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    batch_polls: int = 0

    def step(self) -> dict[str, Any]:
        return self.steps[min(len(self.seen) - 1, len(self.steps) - 1)]


USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 900, "cache_read_input_tokens": 0, "output_tokens": 50}


def message(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": step.get("model", "claude-test-1"),
        "content": [{"type": "text", "text": step.get("text", "hello")}],
        "stop_reason": step.get("stop", "end_turn"),
        "stop_sequence": None,
        "usage": step.get("usage", USAGE),
    }


def stream_events(step: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = message(step)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": start}
    block = {"type": "text", "text": ""}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    text = whole["content"][0]["text"]
    for i in range(0, len(text), 5):
        delta = {"type": "text_delta", "text": text[i : i + 5]}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        if step.get("break_after") == i:
            error = {"type": step.get("error", "overloaded_error"), "message": "Overloaded"}
            yield "error", {"type": "error", "error": error}
            return
        if step.get("cut_after") == i:
            return
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


@contextmanager
def serve(script: Script) -> Iterator[str]:
    """Run the server; yields its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.seen.append(body)
            script.headers.append({k.lower(): v for k, v in self.headers.items()})
            if self.path.startswith("/v1/messages/batches"):
                script.batches["batch_1"] = body["requests"]
                self._json(200, _batch("in_progress"))
                return
            step = script.step()
            if "status" in step:
                kind = step.get("error", "api_error")
                error = {"type": "error", "error": {"type": kind, "message": step.get("message", "fault")}}
                self._json(step["status"], error)
            elif body.get("stream"):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for name, data in stream_events(step):
                    self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
            else:
                self._json(200, message(step))

        def do_GET(self) -> None:
            if self.path.endswith("/results"):
                lines = [json.dumps(_result(r, script.steps[i])) for i, r in enumerate(script.batches["batch_1"])]
                self.send_response(200)
                self.send_header("content-type", "application/binary")
                self.end_headers()
                self.wfile.write(("\n".join(lines) + "\n").encode())
                return
            script.batch_polls += 1
            self._json(200, _batch("ended" if script.batch_polls > 1 else "in_progress", self.headers["host"]))

        def _json(self, status: int, data: dict[str, Any]) -> None:
            content = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _batch(status: str, host: str = "") -> dict[str, Any]:
    stamp = "2026-11-30T00:00:00Z"
    counts = {"processing": 0, "succeeded": 2, "errored": 0, "canceled": 0, "expired": 0}
    return {
        "id": "batch_1",
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": stamp,
        "expires_at": stamp,
        "ended_at": stamp if status == "ended" else None,
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": f"http://{host}/v1/messages/batches/batch_1/results" if status == "ended" else None,
    }


def _result(request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    if step.get("batch") == "errored":
        fault = {"type": "error", "error": {"type": "api_error", "message": "fault"}}
        return {"custom_id": request["custom_id"], "result": {"type": "errored", "error": fault}}
    return {"custom_id": request["custom_id"], "result": {"type": "succeeded", "message": message(step)}}
