"""The LangGraph examples, and the prebuilt packages that they stand on."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import Loopback, WatchedClient
from kvflow_integrations.conformance.loopback import Seen
from kvflow_sdk.wire import StepUpdate

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = ("langgraph_map_reduce", "supervisor_desk")


class Desk(Loopback):
    """Answers each call with the next of `said`."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        super().__init__()

    def complete(self, request: Seen) -> tuple[int, str]:
        return 200, self.said.pop(0) if self.said else "fine"

    @property
    def updates(self) -> list[StepUpdate | None]:
        calls = self.at("/chat/completions")
        return [next(iter(call.updates), None) for call in calls]


def model(server: Loopback) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url, api_key=SecretStr("none"), model="m")


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def test_map_reduce_counts_its_analysts_while_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = example("langgraph_map_reduce", monkeypatch)
    with Desk("one\ntwo\nthree") as server, WatchedClient(server.url) as client:
        app = kvflow.wrap(program.build(model(server)), client=client)
        app.invoke({"text": "Why?", "notes": []}, {"max_concurrency": 1})
        integration.unwrap(app)
        said = [(u.agent, u.steps) for u in server.updates if u is not None]
    assert said == [
        ("planner", {"planner": 0, "analyst": 1, "writer": 2}),
        *[("analyst", {"analyst": 0, "writer": 1})] * 3,
        ("writer", {"writer": 0}),
    ]


def test_the_supervisor_is_an_agent_and_so_is_each_of_its_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = example("supervisor_desk", monkeypatch)
    with Desk() as server, WatchedClient(server.url) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            app = kvflow.wrap(program.build(model(server)), client=client)
        app.invoke({"messages": [{"role": "user", "content": "Why?"}]})
        integration.unwrap(app)
        (update,) = server.updates
    assert update is not None
    prefix = update.agent.removesuffix("supervisor") if update.agent else ""
    assert update.steps == {
        f"{prefix}{name}": steps
        for name, steps in {
            "supervisor": 0,
            "economist": 1,
            "analyst": 1,
            "writer": 1,
        }.items()
    }


def test_a_handoff_of_the_supervisor_and_back_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = example("supervisor_desk", monkeypatch)
    said = ("->transfer_to_economist", "rates matter", "done")
    with Desk(*said) as server, WatchedClient(server.url) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            app = kvflow.wrap(program.build(model(server)), client=client)
        app.invoke({"messages": [{"role": "user", "content": "Why?"}]})
        integration.unwrap(app)
        agents = [u.agent.rpartition("|")[2] for u in server.updates if u and u.agent]
        second = server.updates[1]
    assert agents == ["supervisor", "economist", "supervisor"]
    assert second is not None
    assert second.steps is not None
    assert sorted(second.steps.values()) == [0, 1, 2, 2]


def test_a_handoff_in_a_swarm_is_followed() -> None:
    from langchain.agents import create_agent
    from langgraph_swarm import create_handoff_tool, create_swarm

    with Desk("->transfer_to_bob", "done") as server:
        agents: list[Any] = [
            create_agent(
                model(server),
                tools=[create_handoff_tool(agent_name=other)],
                name=name,
                system_prompt=f"You are {name}.",
            )
            for name, other in (("alice", "bob"), ("bob", "alice"))
        ]
        swarm = create_swarm(agents, default_active_agent="alice")
        with WatchedClient(server.url) as client:
            app = kvflow.wrap(swarm.compile(), client=client)
            app.invoke({"messages": [{"role": "user", "content": "Hello"}]})
            integration.unwrap(app)
        said = [(u.agent, u.steps) for u in server.updates if u is not None]
    assert said == [
        ("alice", {"alice": 0, "bob": 1}),
        ("bob", {"bob": 0, "alice": 1}),
    ]
