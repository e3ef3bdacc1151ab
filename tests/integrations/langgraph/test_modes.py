"""Every way to run a wrapped graph: same results, and every node is seen."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph

from kvflow_sdk.context import current

DIAMOND = {"a": "bc"}
JOIN = {"bc": "d"}
INPUT: dict[str, Any] = {"log": []}


def diamond(recorder: Any) -> Any:
    return recorder.graph(DIAMOND, joins=JOIN).compile()


def agents(recorder: Any) -> list[str]:
    return sorted(agent for agent, _ in recorder.seen)


def test_invoke_answers_as_the_plain_graph(recorder: Any) -> None:
    assert recorder.wrap(diamond(recorder)).invoke(INPUT) == {"log": list("abcd")}
    assert agents(recorder) == list("abcd")


def test_ainvoke_sees_every_node(recorder: Any) -> None:
    app = recorder.wrap(diamond(recorder))
    assert asyncio.run(app.ainvoke(INPUT)) == {"log": list("abcd")}
    assert agents(recorder) == list("abcd")


def test_stream_gives_the_same_chunks(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    assert list(app.stream(INPUT, stream_mode=["updates", "values"])) == [
        ("values", {"log": []}),
        ("updates", {"a": {"log": ["a"]}}),
        ("values", {"log": ["a"]}),
        ("updates", {"b": {"log": ["b"]}}),
        ("values", {"log": ["a", "b"]}),
    ]


def test_astream_gives_the_same_chunks(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())

    async def collect() -> list[Any]:
        return [chunk async for chunk in app.astream(INPUT, stream_mode="updates")]

    assert asyncio.run(collect()) == [{"a": {"log": ["a"]}}, {"b": {"log": ["b"]}}]
    assert agents(recorder) == ["a", "b"]


def test_the_context_does_not_leak_to_whoever_reads_the_stream(recorder: Any) -> None:
    app = recorder.wrap(diamond(recorder))
    assert [current() for _ in app.stream(INPUT)] == [None] * 4


def test_the_context_does_not_leak_to_whoever_reads_the_async_stream(
    recorder: Any,
) -> None:
    app = recorder.wrap(diamond(recorder))

    async def collect() -> list[Any]:
        return [current() async for _ in app.astream(INPUT)]

    assert asyncio.run(collect()) == [None] * 4


def test_batch_runs_every_input_as_a_run_of_its_own(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    assert app.batch([INPUT, INPUT]) == [{"log": ["a", "b"]}] * 2
    assert len({run.id for run in recorder.client.runs}) == 2


def test_abatch_runs_every_input_as_a_run_of_its_own(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    assert asyncio.run(app.abatch([INPUT, INPUT])) == [{"log": ["a", "b"]}] * 2
    assert len({run.id for run in recorder.client.runs}) == 2


def test_events_come_from_the_tracked_nodes(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())

    async def names() -> list[str]:
        return [
            event["name"]
            async for event in app.astream_events(INPUT, version="v2")
            if event["event"] == "on_chain_end"
        ]

    assert {"a", "b", "LangGraph"} <= set(asyncio.run(names()))
    assert agents(recorder) == ["a", "b"]


def test_a_copy_with_another_config_is_tracked_too(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    app.with_config(tags=["mine"]).invoke(INPUT)
    assert agents(recorder) == ["a", "b"]


def test_async_nodes_in_parallel_each_see_themselves(recorder: Any) -> None:
    both = asyncio.Event

    def node(name: str, mine: Any, other: Any) -> Any:
        async def run(state: Any) -> dict[str, list[str]]:
            mine.set()
            await other.wait()
            await asyncio.create_task(asyncio.to_thread(recorder.note))
            return {"log": [name]}

        return run

    async def main() -> None:
        builder = recorder.graph({"a": ""})
        first, second = both(), both()
        builder.add_node("b", node("b", first, second))
        builder.add_node("c", node("c", second, first))
        builder.add_edge("a", "b")
        builder.add_edge("a", "c")
        await recorder.wrap(builder.compile()).ainvoke(INPUT)

    asyncio.run(main())
    assert agents(recorder) == ["a", "b", "c"]
    assert recorder.seen[1][1] == {"b": 0, "c": 0}


def test_sync_nodes_in_parallel_threads_each_see_themselves(recorder: Any) -> None:
    meet = threading.Barrier(2)
    actions = {"b": meet.wait, "c": meet.wait}
    recorder.run(recorder.graph(DIAMOND, joins=JOIN, actions=actions))
    assert agents(recorder) == list("abcd")
    assert {"b": 0, "c": 0, "d": 1} in recorder.client.steps


def test_every_step_of_a_chain_used_as_a_node_is_seen(recorder: Any) -> None:
    def note(value: Any) -> Any:
        recorder.note()
        return value

    builder = recorder.graph({"a": "n"})
    del builder.nodes["n"]
    builder.add_node("n", RunnableLambda(note) | RunnableLambda(note))
    recorder.wrap(builder.compile()).invoke(INPUT)
    assert agents(recorder) == ["a", "n", "n"]


def test_a_wrapped_graph_works_as_a_node_of_a_plain_one(recorder: Any) -> None:
    inner = recorder.wrap(recorder.graph({"a": "b"}).compile())
    outer = StateGraph(inner.builder.state_schema)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    assert outer.compile().invoke(INPUT) == {"log": ["a", "b"]}
    assert agents(recorder) == ["a", "b"]


def test_a_graph_called_inside_a_node_does_not_move_the_outer_run(
    recorder: Any,
) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    builder = recorder.graph({"a": "z"}, actions={"a": lambda: inner.invoke(INPUT)})
    recorder.wrap(builder.compile()).invoke(INPUT)
    # The inner graph's calls are those of the node that made them.
    assert [entry for entry in recorder.seen if entry[0] == "a"] == [
        ("a", {"a": 0, "z": 1})
    ] * 3


def test_two_runs_at_once_do_not_mix(recorder: Any) -> None:
    meet = threading.Barrier(2)
    app = recorder.wrap(
        recorder.graph({"a": "b", "b": "c"}, actions={"b": meet.wait}).compile()
    )
    threads = [threading.Thread(target=app.invoke, args=(INPUT,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in recorder.client.runs:
        own = [u for u in recorder.client.updates if u.run == run.id]
        assert [u.steps for u in sorted(own, key=lambda u: u.seq)] == [
            {"a": 1, "b": 2, "c": 3},
            {"a": 0, "b": 1, "c": 2},
            {"b": 1, "c": 2},
            {"b": 0, "c": 1},
            {"c": 1},
            {"c": 0},
            {},
            {},
        ]
