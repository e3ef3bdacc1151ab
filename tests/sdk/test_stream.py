"""The step stream: newest snapshots, in the background, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kvflow_integrations.conformance.loopback import Loopback
from kvflow_sdk import target as target_module
from kvflow_sdk import wire
from kvflow_sdk.stream import Stream, _flush_all
from kvflow_sdk.target import MAX_BATCH, Target

Start = Callable[..., Stream]


def snapshot(
    run: str = "r", seq: int = 1, *, final: bool = False, **steps: int
) -> wire.StepUpdate:
    return wire.StepUpdate(client="c", run=run, seq=seq, steps=steps, final=final)


def test_snapshot_arrives_as_one_envelope(server: Loopback, start: Start) -> None:
    stream = start(server.root)
    stream.put(snapshot(planner=0, executor=1))
    (request,) = server.wait(wire.STEPS_PATH)
    assert request.updates == [snapshot(planner=0, executor=1)]
    assert request.method == "POST"


def test_no_thread_runs_before_the_first_snapshot(
    server: Loopback, start: Start
) -> None:
    stream = start(server.root)
    assert stream.flush(0)
    assert not [t for t in threading.enumerate() if t.name == "kvflow-stream"]
    assert server.seen == []


def test_what_piles_up_goes_out_together_and_only_the_newest_of_each_run(
    server: Loopback, start: Start
) -> None:
    server.hold = threading.Event()
    stream = start(server.root)
    stream.put(snapshot("first", 1))
    server.wait(wire.STEPS_PATH)
    for seq in range(1, 50):
        stream.put(snapshot("a", seq))
        stream.put(snapshot("b", seq))
    server.hold.set()
    _, second = server.wait(wire.STEPS_PATH, 2)
    assert stream.flush(10)
    assert [(u.run, u.seq) for u in second.updates] == [("a", 49), ("b", 49)]
    assert len(server.seen) == 2


def test_older_snapshot_does_not_replace_a_newer_one(
    server: Loopback, start: Start
) -> None:
    server.hold = threading.Event()
    stream = start(server.root)
    stream.put(snapshot("first"))
    server.wait(wire.STEPS_PATH)
    stream.put(snapshot("a", 5))
    stream.put(snapshot("a", 4))
    server.hold.set()
    _, second = server.wait(wire.STEPS_PATH, 2)
    assert [u.seq for u in second.updates] == [5]


def test_many_runs_go_out_in_bounded_messages(server: Loopback, start: Start) -> None:
    server.hold = threading.Event()
    stream = start(server.root)
    stream.put(snapshot("first"))
    server.wait(wire.STEPS_PATH)
    for number in range(MAX_BATCH + 10):
        stream.put(snapshot(f"run-{number}"))
    server.hold.set()
    requests = server.wait(wire.STEPS_PATH, 3)
    assert [len(r.updates) for r in requests] == [1, MAX_BATCH, 10]


def test_key_goes_along_as_a_bearer_token(server: Loopback, start: Start) -> None:
    start(server.root, api_key="sk-1").put(snapshot())
    (request,) = server.wait(wire.STEPS_PATH)
    assert request.headers["authorization"] == "Bearer sk-1"


def test_busy_server_gets_the_snapshot_again(server: Loopback, start: Start) -> None:
    server.status[wire.STEPS_PATH] = [503, 500]
    stream = start(server.root)
    stream.put(snapshot(a=0))
    requests = server.wait(wire.STEPS_PATH, 3)
    assert [r.updates for r in requests] == [[snapshot(a=0)]] * 3
    assert stream.flush(10)


def test_refused_snapshot_is_counted_and_not_sent_again(
    server: Loopback, start: Start
) -> None:
    stream = start(server.root)
    stream.put(snapshot(a=-1))
    server.wait(wire.STEPS_PATH)
    assert stream.flush(10)
    stream.put(snapshot("other", b=0))
    server.wait(wire.STEPS_PATH, 2)
    assert stream.flush(10)
    assert stream.counters.as_dict() == {"steps.refused": 1, "steps.sent": 1}


def test_refused_snapshot_takes_no_other_with_it(
    server: Loopback, start: Start
) -> None:
    server.hold = threading.Event()
    stream = start(server.root)
    stream.put(snapshot("first"))
    server.wait(wire.STEPS_PATH)
    stream.put(snapshot("bad", a=-1))
    stream.put(snapshot("good", a=1))
    server.hold.set()
    server.wait(wire.STEPS_PATH, 4)
    assert stream.flush(10)
    assert stream.counters.as_dict() == {"steps.refused": 1, "steps.sent": 2}


def test_busy_gateway_gets_the_snapshot_again(server: Loopback, start: Start) -> None:
    server.status[wire.STEPS_PATH] = [429]
    stream = start(server.root)
    stream.put(snapshot(a=0))
    server.wait(wire.STEPS_PATH, 2)
    assert stream.flush(10)
    assert stream.counters.as_dict() == {"steps.failed": 1, "steps.sent": 1}


def test_refusal_is_logged_once(
    server: Loopback, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    stream = start(server.root)
    with caplog.at_level("INFO", "kvflow"):
        for number in range(3):
            stream.put(snapshot(f"run-{number}", a=-1))
            assert stream.flush(10)
    assert stream.counters["steps.refused"] == 3
    assert len([r for r in caplog.records if "answered 400" in r.message]) == 1


def test_unreachable_server_costs_a_counter(dead_url: str, start: Start) -> None:
    stream = start(dead_url)
    stream.put(snapshot())
    for number in range(1000):
        stream.put(snapshot(f"run-{number}"))
    assert stream.flush(10)
    assert stream.counters["steps.failed"] >= 1
    assert stream.counters["steps.sent"] == 0


def test_failing_server_does_not_keep_another_from_its_snapshots(
    server: Loopback, dead_url: str, start: Start
) -> None:
    stream = start(dead_url)
    stream.add(server.root, server.root)
    stream.put(snapshot(a=0))
    (request,) = server.wait(wire.STEPS_PATH)
    assert request.updates == [snapshot(a=0)]


def test_removed_server_gets_nothing_more(server: Loopback, start: Start) -> None:
    stream = start(server.root)
    stream.remove(server.root)
    stream.put(snapshot())
    assert stream.flush(10)
    assert server.seen == []


def test_closed_stream_ignores_what_is_put(server: Loopback, start: Start) -> None:
    stream = start(server.root)
    stream.put(snapshot())
    stream.close(10)
    stream.put(snapshot(seq=2))
    assert len(server.seen) == 1


def test_close_sends_what_waits(server: Loopback, start: Start) -> None:
    stream = start(server.root)
    stream.put(snapshot(final=True))
    stream.close(10)
    assert [u.final for u in server.seen[0].updates] == [True]


def test_close_does_not_wait_longer_than_it_may(server: Loopback, start: Start) -> None:
    server.hold = threading.Event()
    stream = start(server.root)
    stream.put(snapshot())
    server.wait(wire.STEPS_PATH)
    # Returns although the server has not answered; otherwise this hangs.
    stream.close(0.01)
    assert not server.hold.is_set()
    server.hold.set()


def test_probe_tells_a_kvflow_server_from_another(
    server: Loopback, plain_server: Loopback, dead_url: str, start: Start
) -> None:
    answers: dict[str, bool | None] = {}
    stream = start(server.root, api_key="sk-1")
    for root in (server.root, plain_server.root, dead_url):
        stream.probe(root, lambda answer, root=root: answers.update({root: answer}))
    assert stream.flush(10)
    assert answers == {server.root: True, plain_server.root: False, dead_url: None}
    (request,) = server.at(wire.CAPABILITIES_PATH)
    assert "authorization" not in request.headers


def test_full_queue_gives_up_the_oldest_run() -> None:
    target = Target("http://h", None)
    lost = sum(target.keep(snapshot(f"run-{n}"), 3) for n in range(5))
    assert lost == 2
    assert list(target.pending) == ["run-2", "run-3", "run-4"]


def test_end_of_a_run_outlives_snapshots_of_others() -> None:
    target = Target("http://h", None)
    target.keep(snapshot("over", final=True), 2)
    for number in range(5):
        target.keep(snapshot(f"run-{number}"), 2)
    assert list(target.pending) == ["over", "run-4"]


def test_queue_full_of_ends_takes_no_other_snapshot() -> None:
    target = Target("http://h", None)
    target.keep(snapshot("a", final=True), 2)
    target.keep(snapshot("b", final=True), 2)
    assert target.keep(snapshot("c"), 2) == 1
    assert list(target.pending) == ["a", "b"]


def test_nothing_follows_the_end_of_a_run() -> None:
    target = Target("http://h", None)
    target.keep(snapshot("a", 5, final=True), 2)
    target.keep(snapshot("a", 6), 2)
    assert target.pending["a"].final


def test_batch_is_bounded_by_the_agents_in_it() -> None:
    target = Target("http://h", None)
    wide = {f"agent-{n}": n for n in range(wire.MAX_AGENTS)}
    for run in ("a", "b"):
        target.keep(snapshot(run, **wide), 10)
    assert [u.run for u in target.take()] == ["a"]
    assert [u.run for u in target.take()] == ["b"]


def test_pauses_grow_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module.random, "uniform", lambda _, high: high)
    target = Target("http://h", None)
    pauses = []
    for _ in range(8):
        target.fail(100.0, 2.0)
        pauses.append(round(target.not_before - 100.0, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_server_without_the_route_is_left_alone_at_once() -> None:
    target = Target("http://h", None)
    target.fail(0.0, 30.0, at_once=True)
    assert target.not_before >= 30.0 * 0.75


def test_the_end_of_a_process_waits_for_no_server_that_takes_nothing(
    server: Loopback, start: Start
) -> None:
    stream = start(server.root, timeout=0.05, flush=3600.0)
    server.hold = threading.Event()
    stream.put(snapshot(planner=0))
    while not stream.counters["steps.failed"]:
        server.wait(wire.STEPS_PATH, len(server.at(wire.STEPS_PATH)) + 1)
    stream.put(snapshot(seq=2, planner=0))
    _flush_all()
    stream.close(3600.0)
    assert stream.counters["steps.sent"] == 0
    server.hold.set()


def test_the_end_of_a_process_waits_for_a_server_that_takes_steps(
    server: Loopback, start: Start
) -> None:
    stream = start(server.root, flush=3600.0)
    stream.put(snapshot(planner=0))
    _flush_all()
    assert stream.counters["steps.sent"] == 1
