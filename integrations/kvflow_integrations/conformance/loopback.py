"""A real HTTP server on loopback that plays SGLang: OpenAI's routes, its own, KVFlow's.

Nothing is mocked: what a framework, the openai client and the SDK send goes through
real sockets, and `Seen` says what arrived.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from kvflow_sdk import wire
from kvflow_sdk.errors import WireError
from kvflow_sdk.prewarm import PREWARM_PATH, parse_prewarm

__all__ = ["GENERATE_PATH", "Loopback", "Seen", "completion"]

PATIENCE_S = 20.0
"""How long anything here waits for what a test promised to do."""
GENERATE_PATH = "/generate"
"""SGLang's own, of its front-end language."""
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Any

    @property
    def updates(self) -> list[wire.StepUpdate]:
        """What KVFlow said in it; empty when nothing."""
        if self.path.endswith(wire.STEPS_PATH):
            return wire.parse_envelope(self.body)
        if self.path == GENERATE_PATH and "kv_hints" in self.body:
            return wire.parse_envelope(self.body["kv_hints"])
        value = self.headers.get(wire.HEADER)
        return [] if value is None else wire.from_header(value)


def completion(text: str) -> dict[str, Any]:
    """The body of a chat completion that says `text`, or calls a tool: ``->name``."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if text.startswith("->"):
        called = {"name": text[2:], "arguments": "{}"}
        message["tool_calls"] = [{"id": "1", "type": "function", "function": called}]
    return {
        "object": "chat.completion",
        **_HEAD,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _chunks(text: str) -> bytes:
    delta = {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
    chunk = {"object": "chat.completion.chunk", **_HEAD, "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


def _own_answer(text: str) -> dict[str, Any]:
    return {"text": text, "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}


def _own_chunks(text: str) -> bytes:
    return f"data: {json.dumps(_own_answer(text))}\n\ndata: [DONE]\n\n".encode()


@dataclass
class Loopback:
    """The server; what a test may set is read at each request. Close it after use."""

    kvflow: bool = True
    """Whether it has KVFlow's routes."""
    text: str = "forty-two"
    """What every chat completion says."""
    seen: list[Seen] = field(default_factory=list)
    status: dict[str, list[int]] = field(default_factory=dict)
    """By path: statuses to answer with before the usual answer."""
    hold: threading.Event | None = None
    """KVFlow's routes answer only once this is set."""
    hangs_up: bool = False
    """The connection ends without an answer to a call of a model."""
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
        """The requests so far whose path ends so."""
        return [request for request in self.seen if request.path.endswith(ending)]

    def wait(self, ending: str, count: int = 1) -> list[Seen]:
        """The requests to `ending`, once there are `count`."""
        with self.changed:
            done = self.changed.wait_for(
                lambda: len(self.at(ending)) >= count, PATIENCE_S
            )
        assert done, f"{len(self.at(ending))} requests to {ending}, not {count}"
        return self.at(ending)

    def complete(self, request: Seen) -> tuple[int, str]:
        """The status of a chat completion, and what it says. To be overridden."""
        return 200, self.text

    def steps(self, request: Seen) -> tuple[int, Any]:
        """The answer to steps out of band. May be overridden."""
        try:
            updates = wire.parse_envelope(request.body)
        except WireError as error:
            return error.status, {"error": str(error)}
        return 200, {"accepted": len(updates)}

    def prewarm(self, request: Seen) -> tuple[int, Any]:
        """The answer to a prompt to be computed ahead. May be overridden."""
        try:
            parse_prewarm(request.body)
        except WireError as error:
            return error.status, {"error": str(error)}
        return 202, {}

    def close(self) -> None:
        """Idempotent; what is held is let go."""
        if self.hold is not None:
            self.hold.set()
        self.http.shutdown()
        self.http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up, as a closed or killed one does, is no error."""


class _Handler(BaseHTTPRequestHandler):
    loopback: Loopback
    protocol_version = "HTTP/1.1"
    # One write per answer; without this it waits for the client's acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self._answer(json.loads(self.rfile.read(length) or b"null"))

    def _answer(self, body: Any) -> None:
        server = self.loopback
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Seen(self.command, self.path, headers, body)
        with server.changed:
            server.seen.append(request)
            server.changed.notify_all()
            queue = server.status.get(self.path, [])
            status = queue.pop(0) if queue else 200
        if status != 200:
            self._send(status, {"error": {"message": "as told"}})
        elif self.path.endswith("/completions") or self.path == GENERATE_PATH:
            if server.hangs_up:
                self.close_connection = True
            else:
                self._complete(request)
        elif self.path == "/get_model_info":
            self._send(200, {"model_path": "default"})
        elif "/kvflow/" in self.path and server.kvflow:
            self._kvflow(request)
        else:
            self._send(404, {"detail": "Not Found"})

    def _complete(self, request: Seen) -> None:
        status, text = self.loopback.complete(request)
        own = request.path == GENERATE_PATH
        if status != 200:
            self._send(status, {"error": {"message": text}})
        elif request.body.get("stream"):
            chunks = _own_chunks(text) if own else _chunks(text)
            self._send(200, chunks, "text/event-stream")
        else:
            self._send(200, _own_answer(text) if own else completion(text))

    def _kvflow(self, request: Seen) -> None:
        if self.loopback.hold is not None:
            self.loopback.hold.wait(PATIENCE_S)
        if self.path.endswith(wire.CAPABILITIES_PATH):
            self._send(200, wire.capabilities())
        elif self.path.endswith(PREWARM_PATH):
            self._send(*self.loopback.prewarm(request))
        else:
            self._send(*self.loopback.steps(request))

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
