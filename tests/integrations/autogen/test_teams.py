"""The other teams: what they declare, and the steps while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    BaseGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core.models import ModelInfo
from autogen_ext.models.replay import ReplayChatCompletionClient

from kvflow_integrations import autogen as integration
from kvflow_sdk.distance import Frontier, steps_to_execution

from .conftest import Recorder

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    family="unknown",
    structured_output=False,
)


def before(team: Any, name: str | None = None) -> dict[str, int]:
    """The steps before anything runs."""
    graph = integration.step_graph(team, name)
    assert graph is not None
    return steps_to_execution(graph, Frontier(started=False))


def model(recorder: Recorder, *answers: str) -> ReplayChatCompletionClient:
    """A model whose calls are noted."""

    class Noted(ReplayChatCompletionClient):
        async def create(self, *args: Any, **settings: Any) -> Any:
            recorder.note()
            return await super().create(*args, **settings)

    return Noted(list(answers), INFO)


async def test_a_round_robin_team_goes_round(recorder: Recorder) -> None:
    team = RoundRobinGroupChat([recorder.agent(n) for n in "abc"], max_turns=4)
    assert before(team) == {"a": 1, "b": 2, "c": 3}
    await recorder.run(team)
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 2}),
        ("b", {"b": 0, "c": 1, "a": 2}),
        ("c", {"c": 0, "a": 1, "b": 2}),
        ("a", {"a": 0, "b": 1, "c": 2}),
    ]


async def test_a_team_goes_on_where_it_stopped(recorder: Recorder) -> None:
    team = RoundRobinGroupChat([recorder.agent(n) for n in "abc"], max_turns=2)
    tracked = recorder.wrap(team)
    await tracked.run(task="Go.")
    await tracked.run()
    first, second = (run.id for run in recorder.client.runs)
    begins = [
        next(u for u in recorder.client.updates if u.run == r) for r in (first, second)
    ]
    assert [update.steps for update in begins] == [
        {"a": 1, "b": 2, "c": 3},
        {"c": 1, "a": 2, "b": 3},
    ]
    assert [agent for agent, _ in recorder.seen] == ["a", "b", "c", "a"]


async def test_a_lone_agent_follows_itself(recorder: Recorder) -> None:
    await recorder.run(RoundRobinGroupChat([recorder.agent("a")], max_turns=2))
    assert recorder.seen == [("a", {"a": 0})] * 2


async def test_the_selector_is_a_node_named_after_the_team(recorder: Recorder) -> None:
    team = SelectorGroupChat(
        [recorder.agent(n) for n in "abc"],
        model_client=model(recorder, "b", "a"),
        max_turns=2,
    )
    selector = "SelectorGroupChat"
    assert before(team) == {selector: 1, "a": 2, "b": 2, "c": 2}
    await recorder.run(team)
    choosing = (selector, {selector: 0, "a": 1, "b": 1, "c": 1})
    assert recorder.seen == [
        choosing,
        ("b", {"b": 0, selector: 1, "a": 2, "c": 2}),
        choosing,
        ("a", {"a": 0, selector: 1, "b": 2, "c": 2}),
    ]


async def test_two_who_may_not_repeat_are_selected_once(recorder: Recorder) -> None:
    team = SelectorGroupChat(
        [recorder.agent(n) for n in "ab"],
        model_client=model(recorder, "b"),
        max_turns=3,
    )
    await recorder.run(team)
    assert [agent for agent, _ in recorder.seen] == ["SelectorGroupChat", "b", "a", "b"]
    assert recorder.seen[1] == ("b", {"b": 0, "a": 1})
    assert recorder.seen[2] == ("a", {"a": 0, "b": 1})


async def test_a_function_selects_without_the_model(recorder: Recorder) -> None:
    choices = iter(["a", None, "a"])
    team = SelectorGroupChat(
        [recorder.agent(n) for n in "abc"],
        model_client=model(recorder, "c"),
        selector_func=lambda _: next(choices),
        max_turns=3,
    )
    await recorder.run(team)
    selector = "SelectorGroupChat"
    others: Sequence[str] = (selector, "b", "c")
    assert [agent for agent, _ in recorder.seen] == ["a", selector, "c", "a"]
    assert recorder.seen[0] == ("a", {"a": 0, **dict.fromkeys(others, 1)})


async def test_a_swarm_follows_its_handoffs(recorder: Recorder) -> None:
    team = Swarm(
        [
            recorder.agent("a", "-> b", "fine", handoffs=["b", "user"]),
            recorder.agent("b", "fine", "-> c", handoffs=["c"]),
            recorder.agent("c", handoffs=["a"]),
        ],
        termination_condition=MaxMessageTermination(5),
    )
    assert before(team) == {"a": 1, "b": 2, "c": 3}
    await recorder.run(team)
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 2}),
        ("b", {"b": 0, "c": 1, "a": 2}),
        ("b", {"b": 0, "c": 1, "a": 2}),
        ("c", {"c": 0, "a": 1, "b": 2}),
    ]


async def test_a_team_of_the_users_own_is_said_to_be_unknown(
    recorder: Recorder,
) -> None:
    class Mine(RoundRobinGroupChat):
        pass

    class Unknown(BaseGroupChat):
        component_config_schema = RoundRobinGroupChat.component_config_schema
        _create_group_chat_manager_factory = (
            RoundRobinGroupChat._create_group_chat_manager_factory
        )

    agents = [recorder.agent(n) for n in "ab"]
    assert before(Mine(agents, max_turns=2)) == {"a": 1, "b": 2}
    manager = RoundRobinGroupChat(agents)._base_group_chat_manager_class
    team = Unknown("mine", "", agents, "Manager", manager, max_turns=2)
    with pytest.warns(integration.KVFlowWarning, match=r"team 'mine' is a .*Unknown"):
        tracked = recorder.wrap(team)
    await tracked.run(task="Go.")
    assert recorder.seen == [
        ("mine|a", {"mine|a": 0, "mine|b": 1}),
        ("mine|b", {"mine|b": 0, "mine|a": 1}),
    ]


async def test_the_name_of_a_team_stands_before_its_agents(recorder: Recorder) -> None:
    def team() -> RoundRobinGroupChat:
        return RoundRobinGroupChat([recorder.agent("a")], name="desk", max_turns=1)

    assert before(team()) == {"desk|a": 1}
    assert before(team(), "mine") == {"mine|a": 1}
    await recorder.run(team(), name="mine")
    assert recorder.seen == [("mine|a", {"mine|a": 0})]
