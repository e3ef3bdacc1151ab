"""The client: whom it tells who it is, and that nobody has to wait for that."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

import kvflow_sdk as kvflow
from kvflow_sdk import client as client_module
from kvflow_sdk import wire
from kvflow_sdk.client import call_headers
from kvflow_sdk.config import Config

if TYPE_CHECKING:
    from conftest import Loopback


def told(request_headers: dict[str, str]) -> wire.StepUpdate:
    (update,) = wire.from_header(request_headers[wire.HEADER])
    return update


def test_ids_are_unguessable_and_differ() -> None:
    ids = {kvflow.Client().id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(bytes.fromhex(name)) == 16 for name in ids)


def test_name_is_the_readable_beginning_of_the_id() -> None:
    prefix, _, secret = kvflow.Client(name="my-app").id.rpartition("-")
    assert prefix == "my-app"
    assert len(bytes.fromhex(secret)) == 16


def test_longest_name_makes_an_id_that_can_be_sent() -> None:
    wire.check_name(kvflow.Client(name="n" * 64).id, "client")


def test_text_of_a_client_does_not_give_the_id_away() -> None:
    client = kvflow.Client(name="app")
    assert client.id not in repr(client)


def test_default_client_is_one_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_default", None)
    monkeypatch.setenv("KVFLOW_CLIENT_NAME", "from-env")
    first = kvflow.default_client()
    assert kvflow.default_client() is first
    assert first.id.startswith("from-env-")


def test_run_of_a_client_streams_its_steps(server: Loopback) -> None:
    with kvflow.Client(server.url, config=Config(flush=10)) as client:
        run = client.start_run(kvflow.AgentStepGraph.sequence(["a", "b"]))
        server.wait(wire.STEPS_PATH)
        run.start("a")
        run.finish()
    updates = [u for request in server.seen for u in request.updates]
    assert {u.client for u in updates} == {client.id}
    assert {u.run for u in updates} == {run.id}
    assert updates[0].steps == {"a": 1, "b": 2}
    assert updates[-1].final


def test_disabled_client_sends_nothing(server: Loopback) -> None:
    config = Config(disable=True, flush=10)
    with kvflow.Client(server.url, config=config) as client:
        client.start_run().start("a")
        assert not client.knows("http://127.0.0.1:1/v1")
    assert server.seen == []


def test_configured_server_is_known_by_its_origin() -> None:
    client = kvflow.Client("http://localhost:30000/v1")
    assert client.knows("http://LOCALHOST:30000/other")
    client.configure("http://localhost:30001")
    assert client.knows("http://localhost:30001/v1")


def test_server_is_known_once_it_answered_the_probe(server: Loopback) -> None:
    with kvflow.Client() as client:
        assert not client.knows(server.url)
        assert client.flush(10)
        assert client.knows(server.url)
    assert [r.path for r in server.seen] == [wire.CAPABILITIES_PATH]


def test_probe_carries_no_identity(server: Loopback) -> None:
    with kvflow.Client(name="app", config=Config(api_key="sk-1")) as client:
        client.knows(server.url)
        assert client.flush(10)
    (request,) = server.seen
    assert client.id not in repr(request)
    assert "sk-1" not in repr(request)


def test_server_that_answered_the_probe_gets_the_steps(server: Loopback) -> None:
    with kvflow.Client() as client:
        client.knows(server.url)
        assert client.flush(10)
        client.start_run().start("a")
        (request,) = server.wait(wire.STEPS_PATH)
    assert request.updates[0].steps == {"a": 0}


def test_other_server_is_asked_once_and_told_nothing(plain_server: Loopback) -> None:
    with kvflow.Client() as client:
        for _ in range(5):
            assert not client.knows(plain_server.url)
            assert client.flush(10)
        client.start_run().start("a")
        assert client.flush(10)
    assert [r.path for r in plain_server.seen] == [wire.CAPABILITIES_PATH]


def test_answer_is_asked_for_again_when_it_is_too_old(server: Loopback) -> None:
    with kvflow.Client(config=Config(probe_ttl=0)) as client:
        client.knows(server.url)
        assert client.flush(10)
        # The old answer holds while the new one is on its way.
        assert client.knows(server.url)
        server.wait(wire.CAPABILITIES_PATH, 2)


def test_server_that_is_kvflow_no_more_is_told_nothing_more(server: Loopback) -> None:
    with kvflow.Client(config=Config(probe_ttl=0)) as client:
        client.knows(server.url)
        assert client.flush(10)
        server.kvflow = False
        client.knows(server.url)
        assert client.flush(10)
        assert not client.knows(server.url)
        client.start_run().start("a")
        assert client.flush(10)
    assert server.at(wire.STEPS_PATH) == []


def test_asking_does_not_wait_for_the_answer(server: Loopback) -> None:
    server.hold = threading.Event()
    with kvflow.Client(config=Config(flush=0)) as client:
        assert not client.knows(server.url)
        server.wait(wire.CAPABILITIES_PATH)
        assert not client.knows(server.url)
        server.hold.set()
        assert client.flush(10)
        assert client.knows(server.url)


def test_openai_itself_is_not_asked() -> None:
    with kvflow.Client() as client:
        assert not client.knows("https://api.openai.com/v1")
        client.configure("https://api.openai.com/v1")
        assert not client.knows("https://api.openai.com/v1")
        assert client.counters["probes"] == 0


def test_number_of_remembered_servers_is_bounded(dead_url: str) -> None:
    with kvflow.Client() as client:
        for port in range(1, client_module.MAX_SERVERS * 2):
            client.knows(f"http://localhost:{port}")
        assert len(client._answers) <= client_module.MAX_SERVERS


def test_an_answer_that_comes_when_its_server_is_forgotten_is_dropped() -> None:
    with kvflow.Client() as client:
        late = client_module._Told(client, "http://late:1", "http://late:1/v1")
        late(True)
        assert not client._answers
        assert client.counters["probes"] == 0


def test_call_outside_of_an_agent_has_no_headers(server: Loopback) -> None:
    assert call_headers(server.url, configured=True) == {}


def test_call_of_an_agent_says_who_it_is(server: Loopback) -> None:
    mark = kvflow.FixedMark(message=0, chars=9)
    graph = kvflow.AgentStepGraph.sequence(["planner", "executor"])
    with (
        kvflow.Client(server.url) as client,
        kvflow.workflow(graph, client=client) as run,
        kvflow.step("planner", fixed=mark),
    ):
        headers = call_headers(server.url)
    assert run is not None
    update = told(dict(headers))
    assert (update.client, update.run) == (client.id, run.id)
    assert (update.agent, update.fixed) == ("planner", mark)
    assert update.steps == {"planner": 0, "executor": 1}
    assert client.counters["calls.tagged"] == 1


def test_call_to_an_unknown_server_has_no_headers(plain_server: Loopback) -> None:
    with (
        kvflow.Client() as client,
        kvflow.step("planner", client=client),
    ):
        assert call_headers(plain_server.url) == {}
        assert client.flush(10)
        assert call_headers(plain_server.url) == {}


def test_failure_of_kvflow_leaves_the_call_plain_and_is_counted(
    server: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    noise = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(60_000))
    with (
        kvflow.Client(server.url) as client,
        kvflow.workflow(client=client) as run,
    ):
        assert run is not None
        for _ in range(3):
            # Too long for any header; `kvflow.step` would have refused it.
            with client_module.context.enter(run, noise):
                assert call_headers(server.url) == {}
    assert client.counters["error.in-band metadata"] == 3
    assert len([r for r in caplog.records if "in-band" in r.getMessage()]) == 1


def test_forgotten_client_goes_and_its_last_words_are_sent(server: Loopback) -> None:
    client = kvflow.Client(server.url)
    run = client.start_run()
    run.start("a")
    run.finish()
    gone = weakref.ref(client)
    del client, run
    gc.collect()
    assert gone() is None
    server.wait(wire.STEPS_PATH)
    for thread in threading.enumerate():
        if thread.name == "kvflow-stream":
            thread.join(10)
    updates = [u for request in server.seen for u in request.updates]
    assert updates[-1].final


PROGRAM = """
import kvflow_sdk as kvflow
with kvflow.workflow(), kvflow.step("planner"):
    pass
"""


def test_end_of_the_process_sends_the_last_snapshots(server: Loopback) -> None:
    environ = {**os.environ, "KVFLOW_SERVER": server.url, "KVFLOW_FLUSH": "20"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=60)
    updates = [u for request in server.seen for u in request.updates]
    assert updates[-1].final


def test_end_of_the_process_does_not_wait_for_a_silent_server(
    server: Loopback,
) -> None:
    server.hold = threading.Event()
    environ = {**os.environ, "KVFLOW_SERVER": server.url, "KVFLOW_TIMEOUT": "300"}
    # The server answers after this process has ended, or the time-out is reached.
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=60)
    assert not server.hold.is_set()


FORKING = """
import os
import kvflow_sdk as kvflow

client = kvflow.default_client()
with kvflow.step("parent"):
    pass
client.flush(10)
child = os.fork()
if child == 0:
    code = 1
    try:
        with kvflow.step("child"):
            pass
        code = 0 if client.flush(10) else 2
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_child_process_is_a_client_of_its_own(server: Loopback) -> None:
    environ = {**os.environ, "KVFLOW_SERVER": server.url, "KVFLOW_FLUSH": "20"}
    subprocess.run([sys.executable, "-c", FORKING], env=environ, check=True, timeout=60)
    updates = [u for request in server.seen for u in request.updates]
    ends = {u.run: u.client for u in updates if u.final}
    assert len(ends) == 2
    assert len(set(ends.values())) == 2
