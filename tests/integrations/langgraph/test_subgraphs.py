"""Subgraphs are opened in place, to any depth; their nodes are named by path."""

from __future__ import annotations

import asyncio
import operator
import threading
import warnings
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from kvflow_integrations import langgraph as integration
from kvflow_sdk.graph import Group

INPUT: dict[str, Any] = {"log": []}
THREAD: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def outer(recorder: Any, team: Any, **settings: Any) -> StateGraph[State]:
    """before → team → after."""
    builder = StateGraph(State)
    builder.add_node("before", recorder.node("before"))
    builder.add_node("team", team, **settings)
    builder.add_node("after", recorder.node("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "team")
    builder.add_edge("team", "after")
    return builder


def steps(recorder: Any) -> list[Any]:
    return [entry[1] for entry in recorder.seen]


OPENED = [
    ("before", {"before": 0, "team|a": 1, "team|b": 2, "after": 3}),
    ("team|a", {"team|a": 0, "team|b": 1, "after": 2}),
    ("team|b", {"team|b": 0, "after": 1}),
    ("after", {"after": 0}),
]


def test_the_nodes_of_a_subgraph_stand_in_its_place(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = recorder.wrap(outer(recorder, inner).compile())
        app.invoke(INPUT)
    assert recorder.seen == OPENED


def test_an_async_run_opens_it_as_well(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    app = recorder.wrap(outer(recorder, inner).compile())
    asyncio.run(app.ainvoke(INPUT))
    assert recorder.seen == OPENED


def test_a_stream_with_subgraphs_gives_the_same_chunks(recorder: Any) -> None:
    plain = outer(recorder, recorder.graph({"a": "b"}).compile()).compile()
    settings: Any = {"stream_mode": "updates", "subgraphs": True}
    tracked = recorder.wrap(plain)
    ours = [(len(path), chunk) for path, chunk in tracked.stream(INPUT, **settings)]
    assert [(depth, *chunk) for depth, chunk in ours] == [
        (0, "before"),
        (1, "a"),
        (1, "b"),
        (0, "team"),
        (0, "after"),
    ]
    assert recorder.seen == OPENED


def test_a_subgraph_in_a_subgraph_is_opened_too(recorder: Any) -> None:
    innermost = recorder.graph({"a": "b"}).compile()
    middle = outer(recorder, innermost).compile()
    app = recorder.wrap(outer(recorder, middle).compile())
    app.invoke(INPUT)
    assert [agent for agent, _ in recorder.seen] == [
        "before",
        "team|before",
        "team|team|a",
        "team|team|b",
        "team|after",
        "after",
    ]
    assert recorder.seen[0][1] == {
        "before": 0,
        "team|before": 1,
        "team|team|a": 2,
        "team|team|b": 3,
        "team|after": 4,
        "after": 5,
    }
    assert recorder.seen[2][1] == {
        "team|team|a": 0,
        "team|team|b": 1,
        "team|after": 2,
        "after": 3,
    }


def test_a_subgraph_that_a_function_calls_is_opened_below_it(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()

    def team(state: Any) -> Any:
        recorder.note()
        return inner.invoke({"log": []})

    recorder.wrap(outer(recorder, team).compile()).invoke(INPUT)
    assert recorder.seen == [
        ("before", {"before": 0, "team": 1, "team|a": 1, "team|b": 2, "after": 3}),
        # Not inside yet: what it triggers may begin at any moment.
        ("team", {"team": 0, "team|a": 0, "team|b": 1, "after": 2}),
        ("team|a", {"team": 0, "team|a": 0, "team|b": 1, "after": 2}),
        ("team|b", {"team": 0, "team|b": 0, "after": 1}),
        ("after", {"after": 0}),
    ]


def test_supersteps_inside_leave_the_siblings_outside_alone(recorder: Any) -> None:
    inside = threading.Event()
    inner = recorder.graph({"a": "b"}, actions={"b": inside.set}).compile()
    builder = recorder.graph({"a": "s"}, joins={"st": "d"}, actions={"s": inside.wait})
    del builder.nodes["t"]
    builder.add_node("t", inner)
    builder.add_edge("a", "t")
    recorder.wrap(builder.compile()).invoke(INPUT)
    # s is slow: it goes on executing while t comes to its second node and to its end.
    assert ("t|b", {"s": 0, "t|b": 0, "d": 1}) in recorder.seen
    assert recorder.seen[0] == ("a", {"a": 0, "s": 1, "t|a": 1, "t|b": 2, "d": 3})
    assert recorder.seen[-1] == ("d", {"d": 0})


def test_what_follows_a_subgraph_follows_all_its_certain_last_nodes(
    recorder: Any,
) -> None:
    inner = recorder.graph({"a": "bc"}).compile()
    graph = integration.step_graph(outer(recorder, inner).compile())
    assert graph is not None
    assert Group("after", frozenset(["team|b", "team|c"])) in graph.groups


def test_what_follows_a_subgraph_follows_any_of_its_possible_last_nodes(
    recorder: Any,
) -> None:
    builder = recorder.graph({"b": "", "c": ""})
    builder.add_conditional_edges("a", lambda state: "b", ["b", "c"])
    graph = integration.step_graph(outer(recorder, builder.compile()).compile())
    assert graph is not None
    assert Group("after", frozenset(["team|b"])) in graph.groups
    assert Group("after", frozenset(["team|c"])) in graph.groups


def test_a_conditional_entry_of_a_subgraph_makes_each_possible(recorder: Any) -> None:
    builder = recorder.graph({"b": "c"})
    builder.edges.discard((START, "a"))
    builder.add_conditional_edges(START, lambda state: "b", ["a", "b"])
    recorder.wrap(outer(recorder, builder.compile()).compile()).invoke(INPUT)
    assert recorder.seen[0][1] == {
        "before": 0,
        "team|a": 1,
        "team|b": 1,
        "team|c": 2,
        "after": 2,
    }
    assert recorder.seen[1] == ("team|b", {"team|b": 0, "team|c": 1, "after": 2})


def test_a_loop_inside_a_subgraph_counts_inside(recorder: Any) -> None:
    rounds = iter(["a", END])
    builder = recorder.graph({"a": "b"})
    builder.add_conditional_edges("b", lambda state: next(rounds), ["a", END])
    recorder.wrap(outer(recorder, builder.compile()).compile()).invoke(INPUT)
    assert [agent for agent, _ in recorder.seen][1:-1] == ["team|a", "team|b"] * 2
    assert steps(recorder)[2] == {"team|b": 0, "team|a": 1, "after": 1}


def test_many_subgraphs_at_once_are_all_seen(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    builder = StateGraph(State)
    builder.add_node("team", inner)
    builder.add_node("after", recorder.node("after"))
    builder.add_conditional_edges(
        START, lambda state: [Send("team", INPUT) for _ in range(3)], ["team"]
    )
    builder.add_edge("team", "after")
    app = recorder.wrap(builder.compile())
    app.invoke(INPUT, {"max_concurrency": 1})
    assert [agent for agent, _ in recorder.seen] == ["team|a", "team|b"] * 3 + ["after"]
    # The others have not begun: their first node is as near as it can be.
    assert recorder.seen[1][1] == {"team|a": 0, "team|b": 0, "after": 1}
    assert recorder.seen[-1] == ("after", {"after": 0})


def test_copies_of_one_subgraph_may_be_at_different_places(recorder: Any) -> None:
    late, early = threading.Event(), threading.Event()

    def first(state: Any) -> Any:
        if state["log"] == ["late"]:
            assert late.wait(20)
            recorder.note()
            early.set()
        return {"log": []}

    def second(state: Any) -> Any:
        if state["log"] == ["early"]:
            # The other copy is in its first node still.
            late.set()
            assert early.wait(20)
            recorder.note()
        return {"log": []}

    inner = StateGraph(State)
    inner.add_node("a", first)
    inner.add_node("b", second)
    inner.add_edge(START, "a")
    inner.add_edge("a", "b")
    builder = StateGraph(State)
    builder.add_node("team", inner.compile())
    builder.add_node("after", recorder.node("after"))
    sends = [Send("team", {"log": [name]}) for name in ("early", "late")]
    builder.add_conditional_edges(START, lambda state: sends, ["team"])
    builder.add_edge("team", "after")
    recorder.wrap(builder.compile()).invoke(INPUT)
    (in_a, in_b, at_end) = recorder.seen
    assert in_a == ("team|a", {"team|a": 0, "team|b": 0, "after": 1})
    assert in_b[0] == "team|b"
    assert in_b[1]["team|b"] == 0
    assert at_end == ("after", {"after": 0})


def test_a_command_to_the_parent_leaves_the_subgraph(recorder: Any) -> None:
    def leave(state: Any) -> Any:
        recorder.note()
        return Command(goto="after", graph=Command.PARENT)

    builder = recorder.graph({"a": ""})
    builder.add_node("leaving", leave)
    builder.add_edge("a", "leaving")
    builder.add_node("never", recorder.node("never"))
    builder.add_edge("leaving", "never")
    whole = outer(recorder, builder.compile(), destinations=("after",))
    whole.edges.discard(("team", "after"))
    recorder.wrap(whole.compile()).invoke(INPUT)
    assert recorder.seen[-2:] == [
        ("team|leaving", {"team|leaving": 0, "team|never": 1, "after": 1}),
        ("after", {"after": 0}),
    ]


def test_an_interrupt_inside_waits_inside(recorder: Any) -> None:
    def ask(state: Any) -> Any:
        answer = interrupt("really?")
        recorder.note()
        return {"log": [answer]}

    builder = recorder.graph({"a": "bc"}, joins={"bc": "d"})
    del builder.nodes["c"]
    builder.add_node("c", ask)
    app = recorder.wrap(
        outer(recorder, builder.compile()).compile(checkpointer=InMemorySaver())
    )
    app.invoke(INPUT, THREAD)
    waiting = {"team|c": 0, "team|d": 1, "after": 2}
    assert recorder.client.steps[-1] == waiting
    app.invoke(Command(resume="yes"), THREAD)
    assert len(recorder.client.runs) == 1
    assert recorder.seen[-3:] == [
        ("team|c", waiting),
        ("team|d", {"team|d": 0, "after": 1}),
        ("after", {"after": 0}),
    ]


def test_a_subgraph_under_retry_begins_again(recorder: Any) -> None:
    left = [1]

    def fail() -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("no luck")

    inner = recorder.graph({"a": "b"}, actions={"b": fail}).compile()
    policy = RetryPolicy(initial_interval=0.001, retry_on=ValueError, jitter=False)
    app = recorder.wrap(outer(recorder, inner, retry_policy=policy).compile())
    app.invoke(INPUT)
    assert recorder.seen[-3:] == [
        ("team|a", {"team|a": 0, "team|b": 1, "after": 2}),
        ("team|b", {"team|b": 0, "after": 1}),
        ("after", {"after": 0}),
    ]


def test_the_subgraphs_themselves_are_left_alone(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    nodes = {name: (node, node.bound) for name, node in inner.nodes.items()}
    recorder.wrap(outer(recorder, inner).compile()).invoke(INPUT)
    assert {n: (node, node.bound) for n, node in inner.nodes.items()} == nodes
    seen = len(recorder.client.runs)
    with pytest.raises(AssertionError, match="no agent is current"):
        inner.invoke(INPUT)
    assert len(recorder.client.runs) == seen
