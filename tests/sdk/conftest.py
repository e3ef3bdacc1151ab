"""A real HTTP server on loopback, with or without KVFlow's routes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.conformance.loopback import Loopback
from kvflow_sdk.counters import Counters
from kvflow_sdk.stream import Stream


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


@pytest.fixture
def start() -> Iterator[Callable[..., Stream]]:
    """Makes a step stream to a server; all are closed at the end."""
    made: list[Stream] = []

    def start(root: str, *, api_key: str | None = None, **settings: float) -> Stream:
        stream = Stream(kvflow.Config(max_backoff=0.05, **settings), Counters())
        stream.add(root, root, api_key)
        made.append(stream)
        return stream

    yield start
    for stream in made:
        stream.close(5)


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
