"""`kvflow.register`: which prompts leave the process, in which form, and which do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.conformance.loopback import Loopback
from kvflow_sdk.errors import ConfigError, WireError
from kvflow_sdk.prewarm import PREWARM_PATH, parse_prewarm

GRAPH = kvflow.AgentStepGraph.sequence(["planner", "writer"])


def sent(server: Loopback, client: kvflow.Client) -> dict[str, Any]:
    """By agent: what the server was sent."""
    assert client.flush(10)
    bodies = [seen.body for seen in server.seen if seen.path == PREWARM_PATH]
    return {body["agent"]: body for body in bodies}


def test_a_registered_prompt_is_sent_with_the_steps_of_a_run_s_start(
    server: Loopback,
) -> None:
    with kvflow.Client(server.url) as client:
        kvflow.register(GRAPH, prompts={"writer": "You write."}, client=client)
        found = sent(server, client)["writer"]
        assert found["client"] == client.id
        assert found["steps"] == {"planner": 1, "writer": 2}
        system, user = found["request"]["messages"]
        assert system == {"role": "system", "content": "You write."}
        assert user["role"] == "user"
        assert client.counters["prompts.sent"] == 1


def test_without_a_graph_the_prompts_come_in_their_order(server: Loopback) -> None:
    with kvflow.Client(server.url) as client:
        kvflow.register(None, {"b": "B.", "a": "A."}, client=client)
        assert sent(server, client)["a"]["steps"] == {"b": 1, "a": 2}


def test_a_split_prompt_keeps_its_mark(server: Loopback) -> None:
    with kvflow.Client(server.url) as client:
        prompt = kvflow.split("Instructions. ", "Question?")
        kvflow.register(GRAPH, {"planner": prompt}, client=client)
        found = sent(server, client)["planner"]
        assert found["fixed"] == {"message": 0, "chars": 14}


def test_a_whole_request_goes_as_it_is_with_its_tools(server: Loopback) -> None:
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    mark = kvflow.FixedMark(message=1, chars=1)
    with kvflow.Client(server.url) as client:
        request = {"messages": messages, "tools": tools, "fixed": mark}
        kvflow.register(GRAPH, {"planner": request}, client=client)
        found = sent(server, client)["planner"]
        assert found["request"] == {"messages": messages, "tools": tools}
        assert found["fixed"] == {"message": 1, "chars": 1}


def test_nothing_is_sent_of_what_was_not_registered(server: Loopback) -> None:
    with kvflow.Client(server.url) as client:
        run = client.start_run(GRAPH)
        run.start("planner")
        run.end("planner")
        run.finish()
        assert sent(server, client) == {}


def test_a_server_that_refuses_costs_a_counter(server: Loopback) -> None:
    server.status[PREWARM_PATH] = [403]
    with kvflow.Client(server.url) as client:
        kvflow.register(GRAPH, {"planner": "P", "writer": "W"}, client=client)
        sent(server, client)
        assert client.counters["prompts.refused"] == 1
        assert client.counters["prompts.sent"] == 1


def test_a_client_that_is_off_sends_nothing(server: Loopback) -> None:
    config = kvflow.Config(server=server.url, disable=True)
    with kvflow.Client(config=config) as client:
        kvflow.register(GRAPH, {"planner": "P"}, client=client)
        assert sent(server, client) == {}


@pytest.mark.parametrize("prompt", [{"model": "m"}, [], {"text": "a", "messages": []}])
def test_what_is_no_prompt_is_refused_with_the_agent_s_name(prompt: Any) -> None:
    with kvflow.Client() as client, pytest.raises(ConfigError, match="planner"):
        kvflow.register(GRAPH, {"planner": prompt}, client=client)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"agent": ""}, "agent"),
        ({"steps": {"a": -1}}, "steps['a']"),
        ({"fixed": {"chars": 3}}, "fixed.message"),
        ({"request": {}}, "request"),
    ],
)
def test_the_server_names_the_field_that_is_wrong(
    change: dict[str, Any], field: str
) -> None:
    good = {"client": "c", "agent": "a", "steps": {}, "request": {"text": "t"}}
    assert msgspec.to_builtins(parse_prewarm(good)) == good
    with pytest.raises(WireError) as caught:
        parse_prewarm(good | change)
    assert caught.value.field == field
