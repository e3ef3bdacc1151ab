"""GraphFlow: activation groups at compile time and at run time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination

from kvflow_integrations import autogen as integration
from kvflow_sdk.graph import START, Group

from .conftest import Recorder


def groups(team: Any, target: str) -> set[tuple[str, bool]]:
    """The groups that trigger `target`: their sources, and whether by choice."""
    graph = integration.step_graph(team)
    assert graph is not None
    return {
        ("".join(sorted(group.sources)), group.conditional)
        for group in map(graph.groups.__getitem__, graph.triggers(target))
    }


def test_edges_into_one_group_are_a_barrier(recorder: Recorder) -> None:
    assert groups(recorder.flow("a-b a-c b-d c-d"), "d") == {("bc", False)}


def test_any_of_a_group_is_an_or(recorder: Recorder) -> None:
    flow = recorder.flow("a-b a-c b-d| c-d|")
    assert groups(flow, "d") == {("b", False), ("c", False)}


def test_several_groups_are_an_or(recorder: Recorder) -> None:
    flow = recorder.flow("a-b a-c a-e b-d/1 c-d/1 e-d/2")
    assert groups(flow, "d") == {("bc", False), ("e", False)}


def test_conditions_make_a_choice(recorder: Recorder) -> None:
    flow = recorder.flow("a-b?x a-c?y b-d c-d")
    assert groups(flow, "b") == {("a", True)}
    assert groups(flow, "d") == {("bc", False)}


def test_a_barrier_with_a_condition_is_a_choice(recorder: Recorder) -> None:
    assert groups(recorder.flow("a-b a-c b-d?x c-d"), "d") == {("bc", True)}


def test_all_roots_start_unless_one_is_the_entry(recorder: Recorder) -> None:
    graph = integration.step_graph(recorder.flow("a-c b-c"))
    assert graph is not None
    assert set(graph.entry) == {"a", "b"}
    assert all(
        not group.conditional for group in graph.groups if START in group.sources
    )
    chosen = integration.step_graph(recorder.flow("a-c b-c", start="b"))
    assert chosen is not None
    assert chosen.entry == ("b",)


def test_the_activation_of_a_node_is_dead_in_autogen_and_not_read(
    recorder: Recorder,
) -> None:
    flow = recorder.flow("a-b a-c b-d c-d")
    flow._graph.nodes["d"].activation = "any"
    assert groups(flow, "d") == {("bc", False)}


async def test_a_barrier_waits_for_all(recorder: Recorder) -> None:
    await recorder.run(recorder.flow("a-b a-c b-d c-d"))
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 1, "d": 2}),
        ("b", {"b": 0, "c": 0, "d": 1}),
        ("c", {"b": 0, "c": 0, "d": 1}),
        ("d", {"d": 0}),
    ] or recorder.seen[1:3] == [
        ("b", {"b": 0, "c": 0, "d": 1}),
        ("c", {"c": 0, "d": 1}),
    ]


async def test_a_slow_sibling_holds_the_superstep(recorder: Recorder) -> None:
    done = asyncio.Event()

    async def wait() -> None:
        await asyncio.wait_for(done.wait(), 20)

    async def ended() -> None:
        # c has spoken, and e, which follows it, waits for the slow b.
        asyncio.get_running_loop().call_later(0.05, done.set)

    await recorder.run(
        recorder.flow("a-b a-c c-e b-f", actions={"b": wait, "c": ended})
    )
    assert recorder.seen[1] == ("c", {"b": 0, "c": 0, "e": 1, "f": 1})
    assert recorder.seen[2] == ("b", {"b": 0, "e": 1, "f": 1})
    assert {agent for agent, _ in recorder.seen[3:]} == {"e", "f"}


async def test_a_false_condition_does_not_arrive_at_its_barrier(
    recorder: Recorder,
) -> None:
    # b runs twice; at first it does not say x, so d waits for it still.
    flow = recorder.flow(
        "a-b/1 a-c b-d?x b-e?again e-b/2 c-d",
        answers={"b": ["again", "x"]},
        max_turns=9,
    )
    await recorder.run(flow)
    assert [agent for agent, _ in recorder.seen] == ["a", "b", "c", "e", "b", "d"]
    # While e runs, c has arrived and b has not: d is two steps away, not one.
    assert recorder.seen[3] == ("e", {"e": 0, "b": 1, "d": 2})
    assert recorder.seen[5] == ("d", {"d": 0})


async def test_exclusive_conditions_before_a_barrier_starve_it(
    recorder: Recorder,
) -> None:
    result = await recorder.run(
        recorder.flow("a-b?x a-c?y b-d c-d", answers={"a": ["x"]})
    )
    assert result.stop_reason == "Digraph execution is complete"
    assert recorder.seen[1] == ("b", {"b": 0})


async def test_any_of_unequal_depth_runs_twice(recorder: Recorder) -> None:
    await recorder.run(recorder.flow("a-b a-c b-x x-d| c-d|"))
    assert [agent for agent, _ in recorder.seen].count("d") == 2
    assert recorder.seen[-1] == ("d", {"d": 0})


async def test_a_loop_rearms_its_barrier(recorder: Recorder) -> None:
    flow = recorder.flow(
        "a-b a-c b-d c-d d-a?again d-e?done",
        start="a",
        answers={"d": ["again", "done"]},
        termination_condition=MaxMessageTermination(20),
    )
    await recorder.run(flow)
    assert [agent for agent, _ in recorder.seen] == list("abcdabcde")
    assert recorder.seen[3] == ("d", {"d": 0, "a": 1, "e": 1, "b": 2, "c": 2})
    assert recorder.seen[7] == recorder.seen[3]
    assert recorder.seen[8] == ("e", {"e": 0})


async def test_a_loop_without_a_group_of_its_own_starves(recorder: Recorder) -> None:
    # AutoGen waits for a and c before b runs for the first time.
    flow = recorder.flow("a-b b-c c-b?again c-d?done", max_turns=9)
    await recorder.run(flow)
    assert recorder.seen == [("a", {"a": 0})]


async def test_a_graph_that_autogen_refuses_is_said_and_runs_untracked(
    recorder: Recorder,
) -> None:
    flow = recorder.flow("a-b b-c")
    flow._graph.nodes["b"].edges[0].target = "nobody"
    with pytest.warns(integration.KVFlowWarning, match="cannot be used"):
        recorder.wrap(flow)


def test_edges_from_start_come_last(recorder: Recorder) -> None:
    """`Topology.starting_at` counts on it."""
    graph = integration.step_graph(recorder.flow("a-b a-c b-d c-d"))
    assert graph is not None
    assert graph.groups[-1] == Group("a", frozenset([START]))
