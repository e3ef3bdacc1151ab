"""What `wrap` does to a hub, and what runs on it say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.network import (
    AgentClient,
    AgentClientInject,
    AgentTarget,
    FromSpeaker,
    Hub,
    HubClient,
    LocalLink,
    Transition,
    TransitionGraph,
)

import kvflow_sdk
from kvflow_integrations import ag2_network as integration
from kvflow_integrations.conformance import (
    Loopback,
    Seen,
    WatchedClient,
    system_prompt,
)
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config

from .conftest import Ending, Network, opened_hub


class Model(Loopback):
    """Answers each agent by a list, and notes who called as whom, with which steps."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = {name: list(texts) for name, texts in answers.items()}
        self.calls: list[tuple[str, dict[str, int] | None]] = []
        super().__init__()

    def complete(self, request: Seen) -> tuple[int, str]:
        (name,) = set(re.findall(r"You are agent (\w+)\.", str(request.body)))
        for update in request.updates:
            self.calls.append((update.agent or "", update.steps))
        answers = self.answers.get(name)
        text = answers.pop(0) if answers else "fine"
        return (400, text) if text == "refused" else (200, text)


def everything(hub: Hub) -> list[dict[str, Any]]:
    """The attributes of a hub and of the classes, by identity; lists by their items."""
    found = [
        {name: id(value) for name, value in vars(each).items()}
        for each in (hub, Hub, Agent, AgentClient, openai.OpenAI, openai.AsyncOpenAI)
    ]
    return [*found, {"listeners": [id(each) for each in hub._listeners]}]


async def test_unwrapping_restores_every_attribute() -> None:
    async with opened_hub() as hub:
        before = everything(hub)
        with Client(config=Config()) as client:
            assert kvflow_sdk.wrap(hub, client=client) is hub
            assert kvflow_sdk.wrap(hub, client=client) is hub
            assert everything(hub) != before
            assert integration.unwrap(hub) is hub
            assert everything(hub) == before
            assert integration.unwrap(hub) is hub
        assert everything(hub) == before


async def test_a_channel_that_is_open_already_is_followed_from_its_next_turn() -> None:
    with Model() as model, WatchedClient(model.url) as client:
        async with opened_hub() as hub, Network.on(hub, model.url, "ab") as network:
            ids = [network.id(name) for name in ("user", "a", "b")]
            channel = await network.open(TransitionGraph.sequence(ids))
            integration.wrap(hub, client=client, name="team")
            hub.register_listener(ending := Ending())
            await channel.send("Go on.")
            await ending.wait()
            integration.unwrap(hub)
    assert model.calls == [
        ("team|a", {"team|a": 0, "team|b": 1}),
        ("team|b", {"team|b": 0}),
    ]


async def test_a_turn_that_fails_is_still_expected_and_asked_again() -> None:
    with Model(a=["refused"]) as model, WatchedClient(model.url) as client:
        async with opened_hub() as hub, Network.on(hub, model.url, "ab") as network:
            integration.wrap(hub, client=client)
            hub.register_listener(ending := Ending())
            ids = [network.id(name) for name in ("user", "a", "b")]
            channel = await network.open(TransitionGraph.sequence(ids))
            await channel.send("Go on.")
            with pytest.raises(openai.BadRequestError):
                await ending.wait()
            (run,) = client.runs
            assert run.snapshot().steps == {"a": 0, "b": 1}
            hub.register_listener(ending := Ending())
            assert await network.agents["a"].resume_pending_turns() == 1
            await ending.wait()
            integration.unwrap(hub)
    assert run.finished
    assert [agent for agent, _ in model.calls] == ["a", "a", "b"]


async def test_a_closed_hub_ends_its_runs() -> None:
    with Model() as model, WatchedClient(model.url) as client:
        async with opened_hub() as hub, Network.on(hub, model.url, "ab") as network:
            integration.wrap(hub, client=client)
            ids = [network.id(name) for name in ("user", "a", "b")]
            await network.open(TransitionGraph.sequence(ids))
            (run,) = client.runs
            assert not run.finished
            await hub.close()
            assert run.finished
            integration.unwrap(hub)


async def test_a_person_who_is_asked_executes_until_the_answer() -> None:
    with Model() as model, WatchedClient(model.url) as client:
        async with opened_hub() as hub, Network.on(hub, model.url, "a") as network:
            integration.wrap(hub, client=client)
            user, a = network.id("user"), network.id("a")
            graph = TransitionGraph(
                user,
                [
                    Transition(FromSpeaker(a), AgentTarget(user)),
                    Transition(FromSpeaker(user), AgentTarget(a)),
                ],
            )
            channel = await network.open(graph)
            await channel.send("Go on.")
            await network.user.next_envelope(
                predicate=lambda each: each.sender_id == a, timeout=20
            )
            (run,) = client.runs
            while (run.snapshot().steps or {}).get("user") != 0:
                await hub.read_wal(channel.channel_id)
            assert run.snapshot().steps == {"user": 0, "a": 1}
            await channel.close()
            integration.unwrap(hub)


async def consult(client: AgentClientInject) -> str:
    """Ask c, through a channel of its own."""
    channel = await client.open(type="consulting", target="c")
    await channel.send("What do you think?")
    # Nothing reaches an agent's client before its turn is over, so this one looks.
    while not (await channel.info()).is_terminal():
        await asyncio.sleep(0.001)
    return "Done."


async def test_an_agent_that_is_consulted_executes_together_with_who_asks() -> None:
    with Model(a=["->consult", "fine"]) as model, WatchedClient(model.url) as client:
        tools = {"a": [consult]}
        async with (
            opened_hub() as hub,
            Network.on(hub, model.url, "abc", tools) as network,
        ):
            integration.wrap(hub, client=client)
            hub.register_listener(ending := Ending())
            ids = [network.id(name) for name in ("user", "a", "b")]
            channel = await network.open(TransitionGraph.sequence(ids))
            await channel.send("Go on.")
            await ending.wait()
            integration.unwrap(hub)
    assert len(client.runs) == 1
    assert model.calls == [
        ("a", {"a": 0, "b": 1}),
        ("a|c", {"a": 0, "a|c": 0, "b": 1}),
        ("a", {"a": 0, "b": 1}),
        ("b", {"b": 0}),
    ]


async def test_an_agent_that_is_a_tool_executes_together_with_who_calls_it() -> None:
    with Model(a=["->ask_inner", "fine"]) as model, WatchedClient(model.url) as client:
        config = OpenAIConfig(model="m", base_url=model.url, api_key="none")
        inner = Agent("inner", system_prompt("inner"), config=config)

        async def ask_inner() -> str | None:
            """Ask inner."""
            return (await inner.ask("What do you think?")).body

        async with (
            opened_hub() as hub,
            Network.on(hub, model.url, "ab", {"a": [ask_inner]}) as network,
        ):
            integration.wrap(hub, client=client)
            hub.register_listener(ending := Ending())
            ids = [network.id(name) for name in ("user", "a", "b")]
            channel = await network.open(TransitionGraph.sequence(ids))
            await channel.send("Go on.")
            await ending.wait()
            integration.unwrap(hub)
    assert model.calls == [
        ("a", {"a": 0, "b": 1}),
        ("a|inner", {"a": 0, "a|inner": 0, "b": 1}),
        ("a", {"a": 0, "b": 1}),
        ("b", {"b": 0}),
    ]


async def test_agents_on_one_connection_are_told_apart() -> None:
    with Model() as model, WatchedClient(model.url) as client:
        config = OpenAIConfig(model="m", base_url=model.url, api_key="none")
        async with opened_hub() as hub:
            integration.wrap(hub, client=client)
            hub.register_listener(ending := Ending())
            link = HubClient(LocalLink(hub))
            agents = [
                await link.register(
                    Agent(name, system_prompt(name), config=config),
                    attach_plugin=False,
                )
                for name in ("a", "b")
            ]
            graph = TransitionGraph.round_robin(
                [each.agent_id for each in agents], max_turns=4
            )
            channel = await agents[0].open(
                type="workflow", target="b", knobs={"graph": graph.to_dict()}
            )
            await channel.send("Go on.")
            await ending.wait()
            await link.close()
            integration.unwrap(hub)
    assert model.calls == [
        ("b", {"b": 0, "a": 1}),
        ("a", {"a": 0, "b": 1}),
        ("b", {"b": 0, "a": 1}),
    ]
