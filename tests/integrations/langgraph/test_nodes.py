"""Routers that call a model, error handlers, and what is left of a run in a checkpoint."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from kvflow_integrations import langgraph as integration

INPUT: dict[str, Any] = {"log": []}
THREAD: Any = {"configurable": {"thread_id": "t"}}


def test_a_call_in_a_router_is_an_agent_of_its_own(recorder: Any) -> None:
    def route(state: Any) -> str:
        recorder.note()
        return "b"

    builder = recorder.graph({"b": ""})
    builder.add_conditional_edges("a", route, ["b"])
    recorder.run(builder)
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1}),
        # Its node executes until it has decided.
        ("a|router", {"a": 0, "b": 1}),
        ("b", {"b": 0}),
    ]


def test_an_async_router_is_one_too(recorder: Any) -> None:
    async def route(state: Any) -> str:
        recorder.note()
        return "b"

    builder = recorder.graph({"b": ""})
    builder.add_conditional_edges("a", route, ["b"])
    asyncio.run(recorder.wrap(builder.compile()).ainvoke(INPUT))
    assert [agent for agent, _ in recorder.seen] == ["a", "a|router", "b"]


def test_the_router_at_the_beginning_is_one_too(recorder: Any) -> None:
    def route(state: Any) -> str:
        recorder.note()
        return "a"

    builder = recorder.graph({"a": "b"})
    builder.edges.discard((START, "a"))
    builder.add_conditional_edges(START, route, ["a"])
    recorder.run(builder)
    assert recorder.seen[:2] == [
        ("__start__|router", {"a": 1, "b": 2}),
        ("a", {"a": 0, "b": 1}),
    ]


@pytest.mark.skipif(
    "error_handler" not in inspect.signature(StateGraph.add_node).parameters,
    reason="this LangGraph has no error handlers",
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_handler_is_an_agent_that_may_follow(
    recorder: Any, asynchronous: bool
) -> None:
    def fail() -> None:
        raise ValueError("no luck")

    def handle(state: Any) -> Any:
        recorder.note()
        return Command(update={"log": ["handled"]}, goto="c")

    builder = recorder.graph({"a": "", "c": ""})
    builder.add_node("b", recorder.node("b", fail), error_handler=handle)
    builder.add_edge("a", "b")
    app = recorder.wrap(builder.compile(), targets={"__error_handler__b": ["c"]})
    result = asyncio.run(app.ainvoke(INPUT)) if asynchronous else app.invoke(INPUT)
    assert result["log"] == ["a", "handled", "c"]
    handler = "__error_handler__b"
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, handler: 2, "c": 3}),
        (handler, {handler: 0, "c": 1}),
        ("c", {"c": 0}),
    ]


def asking(recorder: Any, saver: Any) -> Any:
    """a → b, c → x; d waits for x and b; x asks a question."""

    def ask(state: Any) -> dict[str, list[str]]:
        answer = interrupt("really?")
        recorder.note()
        return {"log": [answer]}

    builder = recorder.graph({"a": "bc", "c": "x"}, joins={"bx": "d"})
    del builder.nodes["x"]
    builder.add_node("x", ask)
    return recorder.wrap(builder.compile(checkpointer=saver))


def test_another_process_finds_what_a_barrier_had_received(recorder: Any) -> None:
    saver = InMemorySaver()
    first = asking(recorder, saver)
    first.invoke(INPUT, THREAD)
    integration.unwrap(first)
    # What another process has: the checkpoint, and nothing of the run.
    second = asking(recorder, saver)
    recorder.client.updates.clear()
    recorder.seen.clear()
    assert second.invoke(Command(resume="yes"), THREAD)["log"][-2:] == ["yes", "d"]
    assert len(recorder.client.runs) == 2
    assert recorder.seen == [("x", {"x": 0, "d": 1}), ("d", {"d": 0})]


def test_another_process_finds_who_ended_in_the_interrupted_superstep(
    recorder: Any,
) -> None:
    def ask(state: Any) -> dict[str, list[str]]:
        answer = interrupt("really?")
        recorder.note()
        return {"log": [answer]}

    def build(saver: Any) -> Any:
        builder = recorder.graph({"a": "bc", "b": "e"}, joins={"bc": "d"})
        del builder.nodes["c"]
        builder.add_node("c", ask)
        return recorder.wrap(builder.compile(checkpointer=saver))

    saver = InMemorySaver()
    build(saver).invoke(INPUT, THREAD)
    recorder.seen.clear()
    build(saver).invoke(Command(resume="yes"), THREAD)
    assert recorder.seen[0] == ("c", {"c": 0, "d": 1, "e": 1})
