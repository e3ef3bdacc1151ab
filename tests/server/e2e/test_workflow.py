"""A workflow through the real SDK, on a KVFlow server and on one without KVFlow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

import kvflow_sdk as kvflow

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

AGENTS = ("planner", "writer", "critic")
GRAPH = kvflow.AgentStepGraph.sequence(AGENTS)


@pytest.fixture
def ours(server: Server) -> Iterator[kvflow.Client]:
    with kvflow.Client(
        server.url, config=kvflow.Config(api_key=server.key, timeout=30, flush=30)
    ) as client:
        yield client


def asked(caller: Caller) -> dict[str, Any]:
    return {
        "model": "any",
        "messages": [
            {"role": "system", "content": caller.text(40)},
            {"role": "user", "content": caller.text(5)},
        ],
        "max_tokens": 4,
        "temperature": 0,
    }


def choices(llm: openai.OpenAI, body: dict[str, Any]) -> object:
    return llm.chat.completions.create(**body).choices


def runs(server: Server, client: kvflow.Client) -> dict[str, Any]:
    """As the server reports them, after everything sent so far has arrived."""
    assert client.flush(30)
    found: dict[str, Any] = server.client(client.id)["runs"]
    return found


def fixed_prompts(server: Server, client: kvflow.Client) -> dict[str, int]:
    return {name: len(a["prompts"]) for name, a in server.agents(client.id).items()}


def test_the_server_knows_every_step_of_a_workflow(
    server: Server, ours: kvflow.Client, caller: Caller
) -> None:
    seen = []
    with (
        kvflow.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as llm,
        kvflow.workflow(GRAPH, client=ours) as run,
    ):
        for agent in AGENTS:
            with kvflow.step(agent):
                llm.chat.completions.create(**asked(caller))
                seen.append(runs(server, ours)[run.id])
    assert seen == [
        {"planner": 0, "writer": 1, "critic": 2},
        {"writer": 0, "critic": 1},
        {"critic": 0},
    ]


def test_after_its_end_only_the_fixed_prompts_of_a_workflow_are_known(
    server: Server, ours: kvflow.Client, caller: Caller
) -> None:
    with kvflow.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as llm:

        @kvflow.agent("planner")
        def plan() -> None:
            llm.chat.completions.create(**asked(caller))

        with kvflow.workflow(GRAPH, client=ours):
            plan()
    assert runs(server, ours) == {}
    agents = server.agents(ours.id)
    assert len(agents["planner"]["prompts"]) == 1
    assert agents["planner"]["steps"] is None


async def test_agents_side_by_side_belong_to_one_run(
    server: Server, ours: kvflow.Client, caller: Caller
) -> None:
    builder = kvflow.GraphBuilder()
    for name in ("left", "right", "join"):
        builder.add_node(name)
    graph = builder.add_entry("left", "right").add_barrier(["left", "right"], "join")
    bodies = {name: asked(caller) for name in ("left", "right")}
    both = asyncio.Barrier(2)
    seen, prompts = [], []

    async def branch(name: str) -> None:
        async with kvflow.step(name):
            await llm.chat.completions.create(**bodies[name])
            await both.wait()
            seen.append(await asyncio.to_thread(runs, server, ours))
            prompts.append(await asyncio.to_thread(fixed_prompts, server, ours))
            await both.wait()

    async with (
        kvflow.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key) as llm,
        kvflow.workflow(graph.build(), client=ours) as run,
    ):
        await asyncio.gather(branch("left"), branch("right"))
    assert seen == [{run.id: {"left": 0, "right": 0, "join": 1}}] * 2
    assert prompts == [{"left": 1, "right": 1, "join": 0}] * 2


def test_a_workflow_is_answered_as_a_plain_program(
    server: Server, truth: Server, ours: kvflow.Client, caller: Caller
) -> None:
    bodies = {agent: asked(caller) for agent in AGENTS}
    with openai.OpenAI(base_url=f"{truth.url}/v1", api_key="none") as llm:
        plain = [choices(llm, bodies[agent]) for agent in AGENTS]
    tagged = []
    with (
        kvflow.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as llm,
        kvflow.workflow(GRAPH, client=ours),
    ):
        for agent in AGENTS:
            with kvflow.step(agent):
                tagged.append(choices(llm, bodies[agent]))
    assert tagged == plain


def test_a_server_without_kvflow_answers_as_to_a_plain_client(
    truth: Server, caller: Caller
) -> None:
    body = asked(caller)
    with openai.OpenAI(base_url=f"{truth.url}/v1", api_key="none") as llm:
        plain = llm.chat.completions.create(**body)
    with (
        kvflow.Client(truth.url) as client,
        kvflow.OpenAI(base_url=f"{truth.url}/v1", api_key="none") as llm,
        kvflow.workflow(GRAPH, client=client),
        kvflow.step("planner"),
    ):
        tagged = llm.chat.completions.create(**body)
        with llm.chat.completions.create(**body, stream=True) as chunks:
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (tagged.choices, tagged.usage) == (plain.choices, plain.usage)
    assert said == plain.choices[0].message.content
