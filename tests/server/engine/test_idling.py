"""A scheduler that waits for copies only, on a real socket of the kind it waits at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

Make = Callable[..., Any]
LONG_MS = 3_600_000
TOKENS = list(range(64))


def turn(scheduler: Any) -> None:
    from kvflow_server.engine.idling import after_idle

    after_idle(None, scheduler)


class Watched:
    """A poller that notes how long it was asked to wait for."""

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self.waits: list[int] = []

    def poll(self, timeout: int) -> Any:
        self.waits.append(timeout)
        return self._poller.poll(timeout)


class Server:
    """A request's way to an idle scheduler, and that scheduler."""

    def __init__(self, cache: Any) -> None:
        from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper

        self.context = zmq.Context()
        inbox = self.context.socket(zmq.PULL)
        inbox.bind("inproc://requests")
        self.requests = self.context.socket(zmq.PUSH)
        self.requests.connect("inproc://requests")
        sleeper: Any = IdleSleeper([inbox])
        self.poller = sleeper.poller = Watched(sleeper.poller)
        self.scheduler: Any = SimpleNamespace(
            tree_cache=cache, idle_sleeper=sleeper, waiting_queue=[]
        )

    def turn(self) -> list[int]:
        turn(self.scheduler)
        return self.poller.waits


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Server]]:
    servers: list[Server] = []

    def made(cache: Any) -> Server:
        servers.append(Server(cache))
        return servers[-1]

    yield made
    for server in servers:
        server.context.destroy(linger=0)


def test_it_rests_while_a_copy_is_under_way_and_no_longer(
    make_harness: Make, serve: Callable[[Any], Server]
) -> None:
    tree = make_harness()
    server = serve(tree.cache)
    assert server.turn() == []
    tree.insert(TOKENS)  # written through to host memory
    assert server.turn() == [1]
    tree.backup()
    assert server.turn() == [1]


def test_a_request_ends_the_rest(
    make_harness: Make,
    serve: Callable[[Any], Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvflow_server.engine.idling.REST_MS", LONG_MS)
    tree = make_harness()
    server = serve(tree.cache)
    tree.insert(TOKENS)
    server.requests.send(b"a call")
    assert server.turn() == [LONG_MS]  # otherwise this hangs


def test_a_request_that_waits_for_its_copy_is_not_kept_waiting(
    make_harness: Make, serve: Callable[[Any], Server]
) -> None:
    tree = make_harness()
    server = serve(tree.cache)
    tree.insert(TOKENS)
    server.scheduler.waiting_queue.append("a request")
    assert server.turn() == []


def test_without_sleep_on_idle_it_goes_on(make_harness: Make) -> None:
    tree = make_harness()
    tree.insert(TOKENS)
    scheduler = SimpleNamespace(
        tree_cache=tree.cache, idle_sleeper=None, waiting_queue=[]
    )
    turn(scheduler)  # and does not fail


def test_what_it_cannot_read_goes_to_the_guard(make_harness: Make) -> None:
    tree = make_harness()
    with pytest.raises(AttributeError):
        # The harness is strict: in a server this is counted and logged once.
        turn(SimpleNamespace(tree_cache=tree.cache))


def test_stock_sglang_is_left_alone() -> None:
    turn(SimpleNamespace(tree_cache=object()))
