"""Agents as tools, resumed and nested runs, and undo in the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import agents.run
import pytest
from agents import Agent, RunConfig, Runner, handoff

import kvflow_sdk as kvflow
from kvflow_integrations import openai_agents as integration
from kvflow_integrations.conformance import WatchedClient
from kvflow_sdk.context import current

from .conftest import Scripted, called, said

HELP = '{"input": "Help."}'


class Recorder:
    def __init__(self) -> None:
        self.client = WatchedClient("http://127.0.0.1:1")
        self.seen: list[tuple[str, dict[str, int] | None]] = []
        self.wrapped: list[Any] = []

    def note(self) -> None:
        call = current()
        assert call is not None, "no agent is current while its model is called"
        self.seen.append((call.agent, call.run.snapshot().steps))

    def agent(self, name: str, *outputs: Any, **settings: Any) -> Agent[Any]:
        return Agent(name, model=Scripted(self.note, *outputs), **settings)

    def wrap(self, agent: Agent[Any], **settings: Any) -> Agent[Any]:
        self.wrapped.append(kvflow.wrap(agent, client=self.client, **settings))
        tracked: Agent[Any] = self.wrapped[-1]
        return tracked


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    for agent in recorder.wrapped:
        integration.unwrap(agent)
    recorder.client.config = kvflow.Config(flush=0.0)
    recorder.client.close()


async def test_an_agent_called_as_a_tool_runs_inside_its_caller(
    recorder: Recorder,
) -> None:
    deep = recorder.agent("deep", [said("found")])
    writer = recorder.agent(
        "writer",
        [called("deep", HELP)],
        [said("a poem")],
        tools=[deep.as_tool("deep", "")],
    )
    boss = recorder.agent(
        "boss",
        [called("writer", HELP)],
        [said("done")],
        tools=[writer.as_tool("writer", "")],
    )
    result = await Runner.run(recorder.wrap(boss), "Go.")
    assert result.final_output == "done"
    idle = {"boss": 0, "boss|writer": 1, "boss|writer|deep": 2}
    writing = ("boss|writer", {"boss": 0, "boss|writer": 0, "boss|writer|deep": 1})
    assert recorder.seen == [
        ("boss", idle),
        writing,
        ("boss|writer|deep", dict.fromkeys(idle, 0)),
        writing,
        ("boss", idle),
    ]
    assert [run.finished for run in recorder.client.runs] == [True]


async def test_handoffs_said_in_any_way_are_found(recorder: Recorder) -> None:
    b = recorder.agent("b", [said("done")])
    a = recorder.agent(
        "a", [called("to_b")], handoffs=[handoff(b, tool_name_override="to_b")]
    )
    graph = integration.step_graph(a, "desk")
    assert graph is not None
    assert {node.name for node in graph.nodes} == {"desk|a", "desk|b"}
    await Runner.run(recorder.wrap(a, name="desk"), "Go.")
    assert recorder.seen == [
        ("desk|a", {"desk|a": 0, "desk|b": 1}),
        ("desk|b", {"desk|b": 0}),
    ]


async def test_the_users_own_filter_goes_on_working(recorder: Recorder) -> None:
    filtered: list[str] = []

    def theirs(data: Any) -> Any:
        filtered.append(data.agent.name)
        return data.model_data

    config = RunConfig(call_model_input_filter=theirs)
    tracked = recorder.wrap(recorder.agent("a", [said("done")], [said("done")]))
    await Runner.run(tracked, "Go.", run_config=config)
    await Runner.run(tracked, "Go.", run_config={"call_model_input_filter": theirs})
    assert filtered == ["a", "a"]
    assert config.call_model_input_filter is theirs
    assert current() is None


def test_run_sync_is_tracked_too(recorder: Recorder) -> None:
    tracked = recorder.wrap(recorder.agent("a", [said("done")]))
    left: list[object] = []

    def run() -> None:
        Runner.run_sync(tracked, "Go.")
        left.append(current())
        # The SDK leaves the thread's loop open, for the next run.
        asyncio.get_event_loop_policy().get_event_loop().close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert recorder.seen == [("a", {"a": 0})]
    assert recorder.client.runs[0].finished
    assert left == [None]


async def test_unwrapping_leaves_everything_as_it_was(recorder: Recorder) -> None:
    runner = agents.run.DEFAULT_AGENT_RUNNER
    agent = Agent("a", handoffs=[Agent("b")])
    was = dict(vars(agent))
    tracked = kvflow.wrap(agent, client=recorder.client)
    assert isinstance(tracked, Agent)
    assert kvflow.wrap(tracked) is tracked
    assert agents.run.DEFAULT_AGENT_RUNNER is not runner
    assert integration.unwrap(tracked) is agent
    assert integration.unwrap(tracked) is agent
    assert dict(vars(agent)) == was
    assert agents.run.DEFAULT_AGENT_RUNNER is runner


async def test_an_agent_that_is_not_wrapped_is_not_tracked(recorder: Recorder) -> None:
    recorder.wrap(Agent("other"))
    with pytest.raises(AssertionError, match="no agent is current"):
        await Runner.run(recorder.agent("a", [said("done")]), "Go.")
    assert recorder.client.runs == []


def test_other_objects_are_refused() -> None:
    with pytest.raises(kvflow.UnsupportedError, match="OpenAI Agents SDK"):
        integration.wrap(object())
