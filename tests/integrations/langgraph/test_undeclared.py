"""What a graph does not declare: said once, learned from runs, or said by the user."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

import kvflow_sdk as kvflow
from kvflow_integrations.adapter import KVFlowWarning
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.likelihood import MIN_EVIDENCE

INPUT: dict[str, Any] = {"log": []}


def warnings_of(caught: list[Any]) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, KVFlowWarning)]


def routed(recorder: Any, target: str = "x") -> Any:
    """a → the one that its router says, which it does not declare; x → y, z."""
    builder = recorder.graph({"a": "", "x": "y", "z": ""})
    builder.add_conditional_edges("a", lambda state: target)
    return builder.compile()


def jumping(recorder: Any, target: str) -> Any:
    """a jumps to `target` by a Command that it does not declare; c → d."""

    def jump(state: Any) -> Any:
        return Command(goto=target)

    builder = recorder.graph({"c": "d"})
    del builder.nodes["a"]
    builder.add_node("a", jump)
    return builder.compile()


def test_a_send_is_counted_until_its_last_task_ends(recorder: Any) -> None:
    builder = recorder.graph({"a": "", "w": "z"})
    builder.add_conditional_edges(
        "a", lambda state: [Send("w", INPUT) for _ in range(3)], ["w"]
    )
    app = recorder.wrap(builder.compile())
    app.invoke(INPUT, {"max_concurrency": 1})
    assert recorder.seen == [
        ("a", {"a": 0, "w": 1, "z": 2}),
        ("w", {"w": 0, "z": 1}),
        ("w", {"w": 0, "z": 1}),
        ("w", {"w": 0, "z": 1}),
        ("z", {"z": 0}),
    ]


def test_a_construct_is_named_once_and_not_in_every_run(recorder: Any) -> None:
    app = recorder.wrap(jumping(recorder, "c"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.invoke(INPUT)
        app.invoke(INPUT)
    assert len(warnings_of(caught)) == 1


def test_warnings_as_errors_do_not_break_a_run(
    recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = recorder.wrap(jumping(recorder, "c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert app.invoke(INPUT)["log"] == ["c", "d"]
    assert "to node 'c'" in caplog.text


def test_a_few_runs_show_where_a_router_leads(recorder: Any) -> None:
    with pytest.warns(KVFlowWarning):
        app = recorder.wrap(routed(recorder))
    for _ in range(MIN_EVIDENCE):
        app.invoke(INPUT)
    recorder.seen.clear()
    app.invoke(INPUT)
    # z was only assumed to follow a; it never has.
    assert recorder.seen[0] == ("a", {"a": 0, "x": 1, "y": 2})


def test_a_few_runs_show_where_a_command_leads(recorder: Any) -> None:
    app = recorder.wrap(jumping(recorder, "c"))
    with pytest.warns(KVFlowWarning):
        app.batch([INPUT] * MIN_EVIDENCE)
    recorder.client.updates.clear()
    app.invoke(INPUT)
    assert recorder.client.steps[0] == {"a": 1, "c": 2, "d": 3}


def test_the_user_may_say_where_a_router_leads(recorder: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = recorder.wrap(routed(recorder), targets={"a": ["x"]})
        app.invoke(INPUT)
    assert recorder.seen[0] == ("a", {"a": 0, "x": 1, "y": 2})


def test_the_user_may_say_where_a_command_leads(recorder: Any) -> None:
    app = recorder.wrap(jumping(recorder, "c"), targets={"a": ["c", END]})
    app.invoke(INPUT)
    assert recorder.client.steps[0] == {"a": 1, "c": 2, "d": 3}


def test_targets_of_a_node_that_is_not_there_are_named(recorder: Any) -> None:
    with pytest.warns(KVFlowWarning, match="there is no node 'b2'"):
        recorder.wrap(jumping(recorder, "c"), targets={"b2": ["c"]})


def test_a_branch_has_the_likelihood_of_the_runs_before(recorder: Any) -> None:
    turns = iter("bbbcb")
    builder = recorder.graph({"b": "d", "c": ""})
    builder.add_conditional_edges("a", lambda state: next(turns), ["b", "c"])
    app = recorder.wrap(builder.compile())
    for _ in range(4):
        app.invoke(INPUT)
    recorder.client.updates.clear()
    app.invoke(INPUT)
    first = recorder.client.updates[0]
    assert first.steps == {"a": 1, "b": 2, "c": 2, "d": 3}
    assert first.likelihood == {"b": 0.75, "c": 0.25, "d": 0.75}


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
    app = recorder.wrap(jumping(recorder, "c"))
    with pytest.warns(KVFlowWarning, match=r"to node 'c' from .*'a'"):
        app.invoke(INPUT)
    assert recorder.seen == [("c", {"c": 0, "d": 1}), ("d", {"d": 0})]


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


def test_an_uncompiled_graph_is_refused_with_the_remedy(recorder: Any) -> None:
    with pytest.raises(UnsupportedError, match="compile"):
        kvflow.wrap(recorder.graph({"a": "b"}))
