"""A real HTTP server on loopback, with or without KVFlow's routes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import kvflow_sdk as kvflow
from kvflow_sdk import wire
from kvflow_sdk.errors import WireError

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "forty-two"},
        }
    ],
}
CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "forty-two"}}],
}


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def updates(self) -> list[wire.StepUpdate]:
        """What KVFlow said in it; empty when nothing."""
        if self.path.endswith(wire.STEPS_PATH):
            return wire.parse_envelope(self.body)
        value = self.headers.get(wire.HEADER)
        return [] if value is None else wire.from_header(value)


@dataclass
class Loopback:
    """The server; what the tests may set is read at each request."""

    kvflow: bool = True
    seen: list[Seen] = field(default_factory=list)
    status: dict[str, list[int]] = field(default_factory=dict)
    """By path: statuses to answer with before the usual answer."""
    hold: threading.Event | None = None
    """KVFlow's routes answer only once this is set."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    http: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"loopback": self})
        self.http = _Server(("127.0.0.1", 0), handler)
        threading.Thread(
            target=self.http.serve_forever, args=(0.01,), daemon=True
        ).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def at(self, ending: str) -> list[Seen]:
        return [request for request in self.seen if request.path.endswith(ending)]

    def wait(self, ending: str, count: int = 1) -> list[Seen]:
        """The requests to `ending`, once there are `count`."""
        with self.changed:
            done = self.changed.wait_for(lambda: len(self.at(ending)) >= count, 20)
        assert done, f"{len(self.at(ending))} requests to {ending}, not {count}"
        return self.at(ending)

    def close(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self.http.shutdown()
        self.http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up, as a closed or killed one does, is no error."""


class _Handler(BaseHTTPRequestHandler):
    loopback: Loopback
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self._answer(json.loads(self.rfile.read(length) or b"null"))

    def _answer(self, body: Any) -> None:
        server = self.loopback
        headers = {name.lower(): value for name, value in self.headers.items()}
        with server.changed:
            server.seen.append(Seen(self.command, self.path, headers, body))
            server.changed.notify_all()
            queue = server.status.get(self.path, [])
            status = queue.pop(0) if queue else 200
        if status != 200:
            self._send(status, {"error": {"message": "as told"}})
        elif self.path.endswith("/completions"):
            self._complete(body)
        elif "/kvflow/" in self.path and server.kvflow:
            self._kvflow(body)
        else:
            self._send(404, {"detail": "Not Found"})

    def _complete(self, body: Any) -> None:
        if not body.get("stream"):
            self._send(200, ANSWER)
            return
        text = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()
        self._send(200, text, "text/event-stream")

    def _kvflow(self, body: Any) -> None:
        if self.loopback.hold is not None:
            self.loopback.hold.wait(20)
        if self.path.endswith(wire.CAPABILITIES_PATH):
            self._send(200, wire.capabilities())
            return
        try:
            updates = wire.parse_envelope(body)
        except WireError as error:
            self._send(error.status, {"error": str(error)})
        else:
            self._send(200, {"accepted": len(updates)})

    def _send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Loopback]:
    loopback = Loopback()
    yield loopback
    loopback.close()


@pytest.fixture
def plain_server() -> Iterator[Loopback]:
    """An OpenAI server that has never heard of KVFlow."""
    loopback = Loopback(kvflow=False)
    yield loopback
    loopback.close()


@pytest.fixture
def dead_url() -> str:
    """Where nobody listens any more."""
    loopback = Loopback()
    loopback.close()
    return loopback.url


@pytest.fixture(autouse=True)
def default_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[kvflow.Client]:
    """Every test has a default client of its own."""
    from kvflow_sdk import client

    for name in ("SERVER", "CLIENT_NAME", "DISABLE", "API_KEY"):
        monkeypatch.delenv(f"KVFLOW_{name}", raising=False)
    ours = kvflow.Client(config=kvflow.Config(flush=5.0))
    monkeypatch.setattr(client, "_default", ours)
    yield ours
    ours.close()


@pytest.fixture
def doomed() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts servers in processes of their own, to be killed; the first line says where."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    print(Loopback().url, flush=True)
    threading.Event().wait()
