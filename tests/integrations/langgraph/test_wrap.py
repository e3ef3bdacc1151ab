"""Wrapping leaves the graph alone; unwrapping leaves nothing behind."""

from __future__ import annotations

from typing import Any

import openai
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_integrations.adapter import Patches
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config

INPUT: dict[str, Any] = {"log": []}


def everything(compiled: Any) -> dict[str, Any]:
    """The attributes of a graph and of its nodes, by identity."""
    parts = {f"graph.{name}": id(value) for name, value in vars(compiled).items()}
    for node, pregel_node in compiled.nodes.items():
        parts[f"nodes.{node}"] = id(pregel_node)
        for name, value in vars(pregel_node).items():
            parts[f"nodes.{node}.{name}"] = id(value)
    return parts


def patched() -> list[Any]:
    """What is replaced while something is wrapped; error handlers came after 1.0."""
    attributes = [
        (PregelLoop, "tick"),
        (SyncPregelLoop, "accept_push"),
        (AsyncPregelLoop, "aaccept_push"),
        (SyncPregelLoop, "schedule_error_handler"),
        (AsyncPregelLoop, "aschedule_error_handler"),
        (openai.OpenAI, "_prepare_options"),
        (openai.AsyncOpenAI, "_prepare_options"),
    ]
    return [vars(o)[name] for o, name in attributes if name in vars(o)]


def test_wrapping_and_running_leave_the_graph_as_it_was(recorder: Any) -> None:
    compiled = recorder.graph({"a": "bc"}, joins={"bc": "d"}).compile()
    before = everything(compiled)
    recorder.wrap(compiled).invoke(INPUT)
    assert everything(compiled) == before


def test_unwrapping_returns_the_very_same_graph(recorder: Any) -> None:
    compiled = recorder.graph({"a": "b"}).compile()
    assert integration.unwrap(recorder.wrap(compiled)) is compiled


def test_unwrapping_a_plain_graph_returns_it(recorder: Any) -> None:
    compiled = recorder.graph({"a": "b"}).compile()
    assert integration.unwrap(compiled) is compiled


def test_the_last_unwrap_restores_what_was_patched(recorder: Any) -> None:
    before = patched()
    first = recorder.wrap(recorder.graph({"a": "b"}).compile())
    second = recorder.wrap(recorder.graph({"a": "b"}).compile())
    during = patched()
    assert all(now is not then for now, then in zip(during, before, strict=True))
    integration.unwrap(first)
    integration.unwrap(first)
    assert all(now is then for now, then in zip(patched(), during, strict=True))
    integration.unwrap(second)
    assert all(now is then for now, then in zip(patched(), before, strict=True))


def test_an_unwrapped_copy_still_works_untracked(recorder: Any) -> None:
    builder = recorder.graph({"a": ""})
    del builder.nodes["a"]
    builder.add_node("a", lambda state: {"log": ["a"]})
    app = recorder.wrap(builder.compile())
    integration.unwrap(app)
    assert app.invoke(INPUT) == {"log": ["a"]}
    assert recorder.client.runs == []


def test_wrapping_twice_is_wrapping_once(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile())
    assert kvflow.wrap(app) is app


def test_the_wrapped_graph_is_of_the_same_kind(recorder: Any) -> None:
    compiled = recorder.graph({"a": "b"}).compile()
    app = recorder.wrap(compiled)
    assert isinstance(app, CompiledStateGraph)
    assert app.builder is compiled.builder
    assert app.get_graph().draw_mermaid() == compiled.get_graph().draw_mermaid()
    assert app.get_name() == compiled.get_name()


def test_subgraphs_are_found_as_before(recorder: Any) -> None:
    inner = recorder.graph({"a": "b"}).compile()
    builder = recorder.graph({"a": ""})
    builder.add_node("team", inner)
    builder.add_edge("a", "team")
    app = recorder.wrap(builder.compile())
    assert dict(app.get_subgraphs()) == {"team": inner}


def test_a_disabled_client_leaves_a_plain_graph(recorder: Any) -> None:
    builder = recorder.graph({"a": ""})
    del builder.nodes["a"]
    builder.add_node("a", lambda state: {"log": [str(kvflow.current())]})
    app = kvflow.wrap(builder.compile(), client=Client(config=Config(disable=True)))
    recorder.wrapped.append(app)
    assert app.invoke(INPUT) == {"log": ["None"]}


def test_patches_restore_own_and_inherited_attributes() -> None:
    class Base:
        value = 1

    class Child(Base):
        own = 2

    patches = Patches()
    patches.set(Child, "value", 10)
    patches.set(Child, "own", 20)
    patches.set(Child, "own", 30)
    assert (Child.value, Child.own) == (10, 30)
    patches.undo()
    assert (Child.value, Child.own) == (1, 2)
    assert "value" not in vars(Child)
