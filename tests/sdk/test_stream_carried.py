"""What a call carries of its run, and what the step stream still has to send beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from kvflow_integrations.conformance.loopback import Loopback
from kvflow_sdk import noted, wire
from kvflow_sdk import stream as stream_module
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.run import Run
from kvflow_sdk.stream import Stream

Start = Callable[..., Stream]


def stream_and_run(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch, *, held: float
) -> tuple[Stream, Run]:
    """A run of a, b, c; what a call has carried is held for so many seconds."""
    monkeypatch.setattr(noted, "CARRIED_S", held)
    stream = start(server.root)
    graph = AgentStepGraph.sequence(["a", "b", "c"])
    return stream, Run(graph, client="c", outbox=stream)


def steps_of(server: Loopback) -> list[tuple[int, dict[str, int] | None]]:
    seen = server.at(wire.STEPS_PATH)
    return [(u.seq, dict(u.steps or {})) for request in seen for u in request.updates]


def test_what_a_call_has_carried_is_not_sent_beside_it(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, run = stream_and_run(server, start, monkeypatch, held=3600.0)
    for name in "abc":
        run.start(name)
        run.snapshot(agent=name)
        run.end(name)
    run.finish()
    assert stream.flush(5)
    (last,) = [u for r in server.at(wire.STEPS_PATH) for u in r.updates]
    assert last.final


@pytest.mark.parametrize(
    ("looks", "held"),
    [(1_000_000, 0.02), (0, 0.05)],
    ids=["while the thread looks by itself", "while it rests"],
)
def test_what_a_call_has_carried_is_sent_when_nothing_follows(
    server: Loopback,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    looks: int,
    held: float,
) -> None:
    monkeypatch.setattr(stream_module, "LOOKS", looks)
    _, run = stream_and_run(server, start, monkeypatch, held=held)
    run.start("a")
    carried = run.snapshot(agent="a")
    server.wait(wire.STEPS_PATH)
    assert steps_of(server)[-1] == (carried.seq, carried.steps)


def test_what_follows_a_call_is_sent_at_once(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = stream_and_run(server, start, monkeypatch, held=3600.0)
    run.start("a")
    run.snapshot(agent="a")
    run.end("a")
    server.wait(wire.STEPS_PATH)
    assert steps_of(server)[-1][1] == {"b": 0, "c": 1} or steps_of(server)[-1][1] == {
        "b": 1,
        "c": 2,
    }


def test_what_a_call_takes_to_a_server_is_never_sent_there(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, run = stream_and_run(server, start, monkeypatch, held=0.0)
    for name in "abc":
        run.start(name)
        carried = run.snapshot(agent=name)
        run.told(carried, f"{server.root}/v1")
        assert stream.flush(5)
        assert carried.seq not in dict(steps_of(server))
    run.finish()
    assert stream.flush(5)
    assert server.at(wire.STEPS_PATH)[-1].updates[-1].final


def test_what_a_call_takes_to_one_server_is_sent_to_the_others_at_once(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, run = stream_and_run(server, start, monkeypatch, held=3600.0)
    with closing(Loopback()) as other:
        stream.add(other.root, other.root)
        run.start("a")
        carried = run.snapshot(agent="a")
        run.told(carried, server.root)
        other.wait(wire.STEPS_PATH)
        assert stream.flush(5)
        assert steps_of(other)[-1] == (carried.seq, carried.steps)
        assert carried.seq not in dict(steps_of(server))


def test_what_happens_after_the_call_is_sent_to_its_server_too(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, run = stream_and_run(server, start, monkeypatch, held=3600.0)
    run.start("a")
    told = run.snapshot(agent="a")
    run.fire("c")
    run.told(told, server.root)
    assert stream.flush(5)
    assert steps_of(server)[-1][0] > told.seq


def test_a_flush_sends_what_a_call_has_carried(
    server: Loopback, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, run = stream_and_run(server, start, monkeypatch, held=3600.0)
    run.start("a")
    carried = run.snapshot(agent="a")
    assert stream.flush(5)
    assert steps_of(server)[-1] == (carried.seq, carried.steps)
