"""How a run ends, breaks off, is repeated, waits for an answer and goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.types import Command, RetryPolicy, interrupt

INPUT: dict[str, Any] = {"log": []}
THREAD = {"configurable": {"thread_id": "t"}}


def failing(times: int) -> Any:
    left = [times]

    def fail() -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("no luck")

    return fail


def test_an_exception_in_a_node_reaches_the_caller_and_ends_the_run(
    recorder: Any,
) -> None:
    builder = recorder.graph({"a": "b"}, actions={"b": failing(1)})
    with pytest.raises(ValueError, match="no luck"):
        recorder.run(builder)
    assert recorder.client.runs[0].finished
    assert recorder.client.updates[-1].final


def test_an_exception_in_an_async_run_ends_it(recorder: Any) -> None:
    builder = recorder.graph({"a": "b"}, actions={"b": failing(1)})
    app = recorder.wrap(builder.compile())
    with pytest.raises(ValueError, match="no luck"):
        asyncio.run(app.ainvoke(INPUT))
    assert recorder.client.runs[0].finished


def test_a_recursion_limit_ends_the_run(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b", "b": "a"}).compile())
    with pytest.raises(GraphRecursionError):
        app.invoke(INPUT, {"recursion_limit": 4})
    assert recorder.client.runs[0].finished


def test_an_abandoned_stream_ends_the_run(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    chunks = app.stream(INPUT, stream_mode="updates")
    next(chunks)
    assert not recorder.client.runs[0].finished
    chunks.close()
    assert recorder.client.runs[0].finished


def test_an_abandoned_async_stream_ends_the_run(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())

    async def first_only() -> None:
        chunks = app.astream(INPUT, stream_mode="updates")
        await anext(chunks)
        await chunks.aclose()

    asyncio.run(first_only())
    assert recorder.client.runs[0].finished


def test_a_stream_that_nobody_reads_starts_no_run(recorder: Any) -> None:
    recorder.wrap(recorder.graph({"a": "b"}).compile()).stream(INPUT)
    assert recorder.client.runs == []


def test_a_node_under_retry_executes_throughout(recorder: Any) -> None:
    builder = recorder.graph({"a": "b"})
    builder.add_node(
        "r",
        recorder.node("r", failing(2)),
        retry_policy=RetryPolicy(
            initial_interval=0.001, retry_on=ValueError, jitter=False
        ),
    )
    builder.add_edge("b", "r")
    recorder.run(builder)
    assert recorder.seen[-1] == ("r", {"r": 0})
    assert recorder.client.steps[-4:] == [{"r": 1}, {"r": 0}, {}, {}]


def asking(recorder: Any, **compile_settings: Any) -> Any:
    """a → b, c; c asks a question; d waits for both."""
    builder = recorder.graph({"a": "bc"}, joins={"bc": "d"})
    del builder.nodes["c"]

    def ask(state: Any) -> dict[str, list[str]]:
        answer = interrupt("really?")
        recorder.note()
        return {"log": [answer]}

    builder.add_node("c", ask)
    return recorder.wrap(
        builder.compile(checkpointer=InMemorySaver(), **compile_settings)
    )


def test_an_interrupt_pauses_the_run_where_it_stands(recorder: Any) -> None:
    app = asking(recorder)
    assert "__interrupt__" in app.invoke(INPUT, THREAD)
    assert not recorder.client.runs[0].finished
    assert recorder.client.steps[-1] == {"c": 0, "d": 1}


def test_the_answer_goes_on_with_the_same_run_and_its_arrivals(recorder: Any) -> None:
    app = asking(recorder)
    app.invoke(INPUT, THREAD)
    result = app.invoke(Command(resume="yes"), THREAD)
    assert result["log"] == ["a", "b", "yes", "d"]
    assert len(recorder.client.runs) == 1
    assert recorder.seen[-2:] == [("c", {"c": 0, "d": 1}), ("d", {"d": 0})]
    assert recorder.client.updates[-1].final


def test_new_input_on_an_interrupted_thread_is_a_new_run(recorder: Any) -> None:
    app = asking(recorder)
    app.invoke(INPUT, THREAD)
    app.invoke(INPUT, THREAD)
    first, second = recorder.client.runs
    assert first.finished
    assert not second.finished


def test_the_answer_of_another_thread_is_another_run(recorder: Any) -> None:
    app = asking(recorder)
    app.invoke(INPUT, THREAD)
    app.invoke(INPUT, {"configurable": {"thread_id": "other"}})
    assert [run.finished for run in recorder.client.runs] == [False, False]


@pytest.mark.parametrize(
    "breakpoint", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}]
)
def test_a_breakpoint_pauses_with_the_next_node_in_sight(
    recorder: Any, breakpoint: dict[str, list[str]]
) -> None:
    builder = recorder.graph({"a": "b", "b": "c"})
    app = recorder.wrap(builder.compile(checkpointer=InMemorySaver(), **breakpoint))
    app.invoke(INPUT, THREAD)
    steps = recorder.client.steps[-1]
    assert steps["c"] - steps["b"] == 1
    assert not recorder.client.runs[0].finished
    app.invoke(None, THREAD)
    assert [agent for agent, _ in recorder.seen] == ["a", "b", "c"]
    assert recorder.seen[1] == ("b", {"b": 0, "c": 1})
    assert len(recorder.client.runs) == 1
