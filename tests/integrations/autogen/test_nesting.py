"""Teams in teams, and agents that are tools of others."""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
)
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from .conftest import Recorder
from .test_teams import INFO, before, model


def calling(recorder: Recorder, *tools: str, done: str = "done") -> Any:
    """A model that calls all of `tools` at once, and is done after that."""
    calls = [
        FunctionCall(id=str(number), name=tool, arguments='{"task": "Help."}')
        for number, tool in enumerate(tools)
    ]
    asks = CreateResult(
        finish_reason="function_calls",
        content=calls,
        usage=RequestUsage(prompt_tokens=1, completion_tokens=1),
        cached=False,
    )

    class Noted(ReplayChatCompletionClient):
        async def create(self, *args: Any, **settings: Any) -> Any:
            recorder.note()
            return await super().create(*args, **settings)

    return Noted([asks, done], INFO)


async def test_an_inner_team_is_opened_in_place(recorder: Recorder) -> None:
    inner = RoundRobinGroupChat(
        [recorder.agent("a"), recorder.agent("b")], name="pair", max_turns=2
    )
    team = RoundRobinGroupChat(
        [recorder.agent("x"), inner, recorder.agent("z")], max_turns=3
    )
    assert before(team) == {"x": 1, "pair|a": 2, "pair|b": 3, "z": 3}
    await recorder.run(team)
    assert recorder.seen == [
        ("x", {"x": 0, "pair|a": 1, "pair|b": 2, "z": 2}),
        # It may end after any turn, so z may be next.
        ("pair|a", {"pair|a": 0, "pair|b": 1, "z": 1, "x": 2}),
        ("pair|b", {"pair|b": 0, "pair|a": 1, "z": 1, "x": 2}),
        ("z", {"z": 0, "x": 1, "pair|a": 2, "pair|b": 3}),
    ]
    assert len(recorder.client.runs) == 1


async def test_the_selector_of_an_inner_team_is_named_by_its_path(
    recorder: Recorder,
) -> None:
    inner = SelectorGroupChat(
        [recorder.agent("a"), recorder.agent("b"), recorder.agent("c")],
        model_client=model(recorder, "b"),
        name="inner",
        max_turns=1,
    )
    team = RoundRobinGroupChat([inner, recorder.agent("z")], name="desk", max_turns=2)
    assert before(team)["desk|inner"] == 1
    await recorder.run(team)
    assert [agent for agent, _ in recorder.seen] == [
        "desk|inner",
        "desk|inner|b",
        "desk|z",
    ]
    assert recorder.seen[0][1] == {
        "desk|inner": 0,
        **{f"desk|inner|{name}": 1 for name in "abc"},
        "desk|z": 2,
    }


async def test_a_society_of_mind_sums_up_after_its_team(recorder: Recorder) -> None:
    inner = RoundRobinGroupChat([recorder.agent("a"), recorder.agent("b")], max_turns=2)
    mind = SocietyOfMindAgent("mind", inner, model(recorder, "summary"))
    team = RoundRobinGroupChat([mind, recorder.agent("z")], max_turns=2)
    a, b = "mind|RoundRobinGroupChat|a", "mind|RoundRobinGroupChat|b"
    await recorder.run(team)
    assert recorder.seen == [
        (a, {a: 0, b: 1, "mind": 1, "z": 2}),
        (b, {b: 0, a: 1, "mind": 1, "z": 2}),
        ("mind", {"mind": 0, "z": 1, a: 2, b: 3}),
        ("z", {"z": 0, a: 1, b: 2, "mind": 2}),
    ]


async def test_a_society_of_mind_runs_beside_others(recorder: Recorder) -> None:
    """The supersteps of the inner team leave the outer one alone."""
    inner_done, slow_started = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        slow_started.set()
        await asyncio.wait_for(inner_done.wait(), 20)

    async def last() -> None:
        await asyncio.wait_for(slow_started.wait(), 20)
        asyncio.get_running_loop().call_later(0.05, inner_done.set)

    inner = RoundRobinGroupChat(
        [recorder.agent("a"), recorder.agent("b", action=last)], max_turns=2, name="t"
    )
    mind = SocietyOfMindAgent("mind", inner, model(recorder, "summary"))
    s, b, z = (
        recorder.agent("s"),
        recorder.agent("b", action=slow),
        recorder.agent("z"),
    )
    builder = DiGraphBuilder()
    for agent in (s, mind, b, z):
        builder.add_node(agent)
    builder.add_edge(s, mind).add_edge(s, b).add_edge(mind, z).add_edge(b, z)
    await recorder.run(GraphFlow([s, mind, b, z], builder.build()))
    assert recorder.seen[1:3] == [
        ("mind|t|a", {"mind|t|a": 0, "mind|t|b": 1, "mind": 1, "b": 0, "z": 2}),
        ("mind|t|b", {"mind|t|b": 0, "mind|t|a": 1, "mind": 1, "b": 0, "z": 2}),
    ]
    assert recorder.seen[3] == ("mind", {"mind": 0, "b": 0, "z": 1})
    assert recorder.seen[4] == ("b", {"b": 0, "z": 1})
    assert recorder.seen[5] == ("z", {"z": 0})


async def test_an_agent_called_as_a_tool_executes_with_its_caller(
    recorder: Recorder,
) -> None:
    writer = AssistantAgent("writer", model(recorder, "a poem"))
    boss = AssistantAgent(
        "boss",
        calling(recorder, "writer"),
        tools=[AgentTool(writer)],
        reflect_on_tool_use=True,
    )
    team = RoundRobinGroupChat([boss, recorder.agent("z")], max_turns=2)
    assert before(team) == {"boss": 1, "boss|writer": 2, "z": 2}
    await recorder.run(team)
    thinks = ("boss", {"boss": 0, "boss|writer": 1, "z": 1})
    assert recorder.seen == [
        thinks,
        ("boss|writer", {"boss": 0, "boss|writer": 0, "z": 1}),
        thinks,
        ("z", {"z": 0, "boss": 1, "boss|writer": 2}),
    ]


async def test_tools_run_in_parallel_and_call_tools_themselves(
    recorder: Recorder,
) -> None:
    deep = AgentTool(AssistantAgent("deep", model(recorder, "found it")))
    left = AssistantAgent(
        "left", calling(recorder, "deep"), tools=[deep], reflect_on_tool_use=True
    )
    right = AssistantAgent("right", model(recorder, "nothing"))
    boss = AssistantAgent(
        "boss",
        calling(recorder, "left", "right"),
        tools=[AgentTool(left), AgentTool(right)],
        reflect_on_tool_use=True,
    )
    await recorder.run(RoundRobinGroupChat([boss], max_turns=1))
    agents = [agent for agent, _ in recorder.seen]
    assert agents[0] == agents[-1] == "boss"
    assert sorted(agents[1:-1]) == [
        "boss|left",
        "boss|left",
        "boss|left|deep",
        "boss|right",
    ]
    steps = dict(recorder.seen)["boss|left|deep"]
    assert steps is not None
    assert steps["boss"] == steps["boss|left"] == steps["boss|left|deep"] == 0


async def test_a_team_called_as_a_tool_runs_inside_its_caller(
    recorder: Recorder,
) -> None:
    pair = RoundRobinGroupChat(
        [recorder.agent("a"), recorder.agent("b")], name="pair", max_turns=2
    )
    tool = TeamTool(pair, "ask_pair", "Asks two.")
    boss = AssistantAgent(
        "boss", calling(recorder, "ask_pair"), tools=[tool], reflect_on_tool_use=True
    )
    await recorder.run(RoundRobinGroupChat([boss, recorder.agent("z")], max_turns=2))
    idle = {"boss": 0, "boss|pair|a": 1, "boss|pair|b": 2, "z": 1}
    assert recorder.seen == [
        ("boss", idle),
        ("boss|pair|a", {"boss": 0, "boss|pair|a": 0, "boss|pair|b": 1, "z": 1}),
        ("boss|pair|b", {"boss": 0, "boss|pair|b": 0, "boss|pair|a": 1, "z": 1}),
        ("boss", idle),
        ("z", {"z": 0, "boss": 1, "boss|pair|a": 2, "boss|pair|b": 3}),
    ]


async def test_an_agent_by_itself_can_be_wrapped(recorder: Recorder) -> None:
    writer = AssistantAgent("writer", model(recorder, "a poem"))
    boss = AssistantAgent(
        "boss",
        calling(recorder, "writer"),
        tools=[AgentTool(writer)],
        reflect_on_tool_use=True,
    )
    messages = [m async for m in recorder.wrap(boss).run_stream(task="Go.")]
    assert messages[-1].messages[-1].to_text() == "done"
    assert [agent for agent, _ in recorder.seen] == ["boss", "boss|writer", "boss"]
    assert recorder.seen[1] == ("boss|writer", {"boss": 0, "boss|writer": 0})
    assert len(recorder.client.runs) == 1
    assert recorder.client.runs[0].finished


async def test_a_wrapped_team_inside_a_wrapped_one_is_part_of_its_run(
    recorder: Recorder,
) -> None:
    inner = RoundRobinGroupChat([recorder.agent("a")], name="inner", max_turns=1)
    team = RoundRobinGroupChat([recorder.wrap(inner), recorder.agent("z")], max_turns=2)
    await recorder.run(team)
    assert [agent for agent, _ in recorder.seen] == ["inner|a", "z"]
    assert len(recorder.client.runs) == 1


async def test_a_filter_is_the_agent_that_it_filters_for(recorder: Recorder) -> None:
    inner = AssistantAgent("inner", model(recorder, "fine"))
    filtered = MessageFilterAgent("outer", inner, MessageFilterConfig(per_source=[]))
    await recorder.run(RoundRobinGroupChat([filtered], max_turns=1))
    assert recorder.seen == [("outer", {"outer": 0})]
