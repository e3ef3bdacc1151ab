"""What is not fully understood: one warning that names it, and a run that works."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import pytest
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

import kvflow_sdk as kvflow
from kvflow_integrations.adapter import KVFlowWarning
from kvflow_sdk.errors import UnsupportedError

INPUT: dict[str, Any] = {"log": []}


def warnings_of(caught: list[Any]) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, KVFlowWarning)]


def sending(recorder: Any, width: int) -> Any:
    """a sends `width` times to w, which is no declared target of any other edge."""
    builder = recorder.graph({"a": "", "w": "z"})
    builder.add_conditional_edges(
        "a", lambda state: [Send("w", INPUT) for _ in range(width)], ["w"]
    )
    return builder.compile()


def test_a_send_is_counted_until_its_last_task_ends(recorder: Any) -> None:
    app = recorder.wrap(sending(recorder, 3))
    with pytest.warns(KVFlowWarning, match="Send to node 'w'"):
        app.invoke(INPUT, {"max_concurrency": 1})
    assert recorder.seen == [
        ("a", {"a": 0, "w": 1, "z": 2}),
        ("w", {"w": 0, "z": 1}),
        ("w", {"w": 0, "z": 1}),
        ("w", {"w": 0, "z": 1}),
        ("z", {"z": 0}),
    ]


def test_a_construct_is_named_once_and_not_in_every_run(recorder: Any) -> None:
    app = recorder.wrap(sending(recorder, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.invoke(INPUT)
        app.invoke(INPUT)
    assert len(warnings_of(caught)) == 1


def test_warnings_as_errors_do_not_break_a_run(
    recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = recorder.wrap(sending(recorder, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert app.invoke(INPUT)["log"] == ["a", "w", "w", "z"]
    assert "Send to node 'w'" in caplog.text


def test_a_router_without_targets_leads_to_what_nothing_else_does(
    recorder: Any,
) -> None:
    builder = recorder.graph({"a": "", "x": "y", "z": ""})
    builder.add_conditional_edges("a", lambda state: "x")
    with pytest.warns(KVFlowWarning, match=r"router .* of node 'a'.*\['x', 'z'\]"):
        app = recorder.wrap(builder.compile())
    app.invoke(INPUT)
    assert recorder.seen == [
        ("a", {"a": 0, "x": 1, "z": 1, "y": 2}),
        ("x", {"x": 0, "y": 1}),
        ("y", {"y": 0}),
    ]


def test_a_command_with_declared_ends_needs_no_warning(recorder: Any) -> None:
    def choose(state: Any) -> Command[Literal["b", "c"]]:
        recorder.note()
        return Command(goto="c")

    builder = recorder.graph({"b": "", "c": ""})
    del builder.nodes["a"]
    builder.add_node("a", choose)
    recorder.run(builder)
    assert recorder.seen == [("a", {"a": 0, "b": 1, "c": 1}), ("c", {"c": 0})]


def test_a_command_without_ends_is_named_when_it_happens(recorder: Any) -> None:
    def jump(state: Any) -> Any:
        return Command(goto="c")

    builder = recorder.graph({"c": "d"})
    del builder.nodes["a"]
    builder.add_node("a", jump)
    app = recorder.wrap(builder.compile())
    with pytest.warns(KVFlowWarning, match=r"Command to node 'c' from .*'a'"):
        app.invoke(INPUT)
    assert recorder.seen == [("c", {"c": 0, "d": 1}), ("d", {"d": 0})]


def test_a_subgraph_is_one_node_and_named(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    outer = StateGraph(inner.builder.state_schema)
    outer.add_node("team", inner)
    outer.add_node("after", recorder.node("after"))
    outer.add_edge(START, "team")
    outer.add_edge("team", "after")
    with pytest.warns(KVFlowWarning, match="subgraph in node 'team'"):
        app = recorder.wrap(outer.compile())
    assert app.invoke(INPUT)["log"] == ["a", "b", "after"]
    assert recorder.seen == [
        ("team", {"team": 0, "after": 1}),
        ("team", {"team": 0, "after": 1}),
        ("after", {"after": 0}),
    ]


def test_an_agent_loop_is_one_node_without_a_warning(recorder: Any) -> None:
    inner = StateGraph(recorder.graph({"a": ""}).state_schema)
    inner.add_node("model", recorder.node("model"))
    inner.add_node("tools", recorder.node("tools"))
    inner.add_edge(START, "model")
    inner.add_conditional_edges("model", lambda state: END, ["tools", END])
    inner.add_edge("tools", "model")
    builder = recorder.graph({"a": ""})
    builder.add_node("helper", inner.compile())
    builder.add_edge("a", "helper")
    recorder.run(builder)
    assert recorder.seen[-1] == ("helper", {"helper": 0})


def test_a_functional_graph_runs_with_its_entry_point_as_the_agent(
    recorder: Any,
) -> None:
    @entrypoint()
    def workflow(number: int) -> int:
        recorder.note()
        return number + 1

    with pytest.warns(KVFlowWarning, match="functional API: entry point 'workflow'"):
        app = recorder.wrap(workflow)
    assert app.invoke(1) == 2
    assert recorder.seen == [("workflow", {"workflow": 0})]


def test_an_uncompiled_graph_is_refused_with_the_remedy(recorder: Any) -> None:
    with pytest.raises(UnsupportedError, match="compile"):
        kvflow.wrap(recorder.graph({"a": "b"}))
