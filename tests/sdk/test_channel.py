"""The background thread's HTTP, against real servers."""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk.channel import FAILURES, MAX_ANSWER, Channels
from kvflow_sdk.wire import CAPABILITIES_PATH

if TYPE_CHECKING:
    from conftest import Loopback

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channels]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    channels = Channels(5.0)
    yield channels
    channels.close()


class Counting(socketserver.ThreadingTCPServer):
    """A server that says what it was asked; `connections` of them were opened."""

    daemon_threads = True
    connections = 0
    hang_up = False
    answer = b"hello"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def process_request(self, *args: Any) -> None:
        self.connections += 1
        super().process_request(*args)

    def handle_error(self, *_: Any) -> None:
        """A client that has read enough hangs up."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)
        # Without a word, as servers do with connections that nobody used for a while.
        self.close_connection = self.server.hang_up

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def counting() -> Iterator[Counting]:
    server = Counting()
    yield server
    server.shutdown()
    server.server_close()


def test_a_connection_is_kept(channels: Channels, counting: Counting) -> None:
    for _ in range(3):
        assert channels.request("GET", counting.root) == (200, b"hello")
    assert counting.connections == 1


def test_one_that_the_server_closed_is_opened_again(
    channels: Channels, counting: Counting
) -> None:
    counting.hang_up = True
    for _ in range(3):
        assert channels.request("GET", counting.root) == (200, b"hello")
    assert counting.connections == 3


def test_no_more_is_read_than_anybody_needs(
    channels: Channels, counting: Counting
) -> None:
    counting.answer = b"x" * (4 * MAX_ANSWER)
    assert channels.request("GET", counting.root) == (200, b"x" * MAX_ANSWER)
    counting.answer = b"hello"
    assert channels.request("GET", counting.root) == (200, b"hello")


def test_nobody_there_is_a_failure(channels: Channels, dead_url: str) -> None:
    with pytest.raises(FAILURES):
        channels.request("GET", dead_url)


def test_the_proxy_of_the_environment_is_used(
    channels: Channels, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.root)
    status, _ = channels.request("GET", f"http://nowhere.invalid{CAPABILITIES_PATH}")
    assert status == 200
    (seen,) = server.seen
    assert seen.path == f"http://nowhere.invalid{CAPABILITIES_PATH}"


def test_a_server_that_needs_no_proxy_gets_none(
    channels: Channels, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert channels.request("GET", server.root + CAPABILITIES_PATH)[0] == 200


def test_a_proxy_of_another_kind_is_a_failure(
    channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(FAILURES, match="socks5"):
        channels.request("GET", "http://nowhere.invalid/")


def test_what_is_no_tls_is_a_failure(channels: Channels, counting: Counting) -> None:
    with pytest.raises(FAILURES):
        channels.request("GET", counting.root.replace("http:", "https:"))
