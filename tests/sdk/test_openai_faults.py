"""Servers that die, are absent or know no KVFlow: what a plain client would see."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import openai
import pytest

import kvflow_sdk as kvflow
from kvflow_sdk import wire

if TYPE_CHECKING:
    from conftest import Loopback

GRAPH = kvflow.AgentStepGraph.sequence(["planner", "executor", "reviewer"])
KINDS = [openai.OpenAI, kvflow.OpenAI]


def connect(kind: type[openai.OpenAI], url: str) -> openai.OpenAI:
    return kind(base_url=url, api_key="sk-1", max_retries=0)


def ask(client: openai.OpenAI) -> str | None:
    messages: Any = [{"role": "user", "content": "why?"}]
    answer = client.chat.completions.create(model="m", messages=messages)
    return answer.choices[0].message.content


def outcome(client: openai.OpenAI) -> tuple[str, object]:
    """What the application sees of one call."""
    try:
        return "answer", ask(client)
    except openai.OpenAIError as error:
        return type(error).__name__, str(error)


def workflow(client: openai.OpenAI, between: Callable[[], None]) -> list[object]:
    seen: list[object] = []
    with kvflow.workflow(GRAPH):
        for name in ("planner", "executor", "reviewer"):
            with kvflow.step(name):
                seen.append(outcome(client))
            if name == "planner":
                between()
    return seen


def test_server_that_is_killed_in_mid_workflow(
    doomed: Callable[[], subprocess.Popen[str]],
) -> None:
    seen = []
    for kind in KINDS:
        process = doomed()
        assert process.stdout is not None
        with connect(kind, process.stdout.readline().strip()) as client:

            def kill(process: subprocess.Popen[str] = process) -> None:
                process.kill()
                process.wait()

            seen.append(workflow(client, kill))
    plain, ours = seen
    assert ours == plain
    assert ours[0] == ("answer", "forty-two")
    assert [name for name, _ in ours[1:]] == ["APIConnectionError"] * 2


def test_server_that_knows_no_kvflow(
    plain_server: Loopback, default_client: kvflow.Client
) -> None:
    with connect(kvflow.OpenAI, plain_server.url) as client:
        seen = workflow(client, lambda: None)
    assert seen == [("answer", "forty-two")] * 3
    assert default_client.flush(10)
    calls = plain_server.at("/completions")
    assert [call.body.keys() for call in calls] == [{"messages", "model"}] * 3
    # One attempt, and then the step stream leaves the server alone.
    assert len(plain_server.at(wire.STEPS_PATH)) == 1


def test_server_that_is_not_there(dead_url: str) -> None:
    seen = []
    for kind in KINDS:
        with connect(kind, dead_url) as client:
            seen.append(workflow(client, lambda: None))
    plain, ours = seen
    assert ours == plain
    assert [name for name, _ in ours] == ["APIConnectionError"] * 3


def test_error_of_the_server_comes_through(server: Loopback) -> None:
    server.status["/v1/chat/completions"] = [429, 429]
    with connect(openai.OpenAI, server.url) as client:
        plain = outcome(client)
    with connect(kvflow.OpenAI, server.url) as client, kvflow.step("planner"):
        assert outcome(client) == plain
    assert plain[0] == "RateLimitError"


def test_calls_wait_for_nothing_that_kvflow_asks(server: Loopback) -> None:
    # KVFlow's routes do not answer before the calls are done.
    server.hold = threading.Event()
    with connect(kvflow.OpenAI, server.url) as client:
        seen = workflow(client, lambda: None)
    assert seen == [("answer", "forty-two")] * 3
    assert not server.hold.is_set()
    server.hold.set()


def test_call_is_one_request(server: Loopback) -> None:
    with connect(kvflow.OpenAI, server.url) as client:
        workflow(client, lambda: None)
    others = [r for r in server.seen if r.path != wire.STEPS_PATH]
    assert [r.path for r in others] == ["/v1/chat/completions"] * 3


def test_failure_of_kvflow_itself_leaves_the_call_plain(
    server: Loopback,
    default_client: kvflow.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(wire, "fit_header", fail)
    with connect(kvflow.OpenAI, server.url) as client, kvflow.step("planner"):
        assert outcome(client) == ("answer", "forty-two")
    assert default_client.counters["error.in-band metadata"] == 1


@pytest.mark.parametrize("url", ["nowhere", "http://", "http://host:port/v1"])
def test_unusable_base_url_fails_as_in_the_plain_client(url: str) -> None:
    def attempt(kind: type[openai.OpenAI]) -> tuple[str, object]:
        try:
            with connect(kind, url) as client, kvflow.step("planner"):
                return outcome(client)
        except Exception as error:
            return type(error).__name__, str(error)

    assert attempt(kvflow.OpenAI) == attempt(openai.OpenAI)
    assert attempt(kvflow.OpenAI)[0] != "answer"
