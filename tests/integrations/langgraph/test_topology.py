"""What is read from a compiled graph before it runs."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.graph import START, StateGraph

from kvflow_integrations.langgraph.topology import Topology, read_topology
from kvflow_sdk.graph import Group


def read(builder: StateGraph[Any], name: str | None = None) -> Topology:
    return read_topology(builder.compile(), name)


def groups(topology: Topology) -> set[Group]:
    assert topology.graph is not None
    return set(topology.graph.groups)


def test_single_edges_and_joins_are_told_apart(recorder: Any) -> None:
    topology = read(recorder.graph({"a": "bc", "b": "e", "c": "e"}, joins={"bc": "d"}))
    assert groups(topology) == {
        Group("a", frozenset([START])),
        Group("b", frozenset("a")),
        Group("c", frozenset("a")),
        Group("d", frozenset("bc")),
        Group("e", frozenset("b")),
        Group("e", frozenset("c")),
    }
    assert topology.findings == ()


def test_a_path_map_gives_conditional_edges(recorder: Any) -> None:
    builder = recorder.graph({"b": "", "c": ""})
    builder.add_conditional_edges("a", lambda state: "yes", {"yes": "b", "no": "c"})
    assert groups(read(builder)) >= {
        Group("b", frozenset("a"), conditional=True),
        Group("c", frozenset("a"), conditional=True),
    }


def test_an_annotated_router_declares_its_targets(recorder: Any) -> None:
    def route(state: Any) -> Literal["b", "__end__"]:
        return "b"

    builder = recorder.graph({"b": ""})
    builder.add_conditional_edges("a", route)
    topology = read(builder)
    assert Group("b", frozenset("a"), conditional=True) in groups(topology)
    assert topology.findings == ()


def test_an_edge_that_is_also_conditional_is_certain(recorder: Any) -> None:
    builder = recorder.graph({"a": "b"})
    builder.add_conditional_edges("a", lambda state: "b", ["b"])
    assert Group("b", frozenset("a")) in groups(read(builder))


def test_assumed_targets_are_marked_as_unknown(recorder: Any) -> None:
    builder = recorder.graph({"b": "c"})
    builder.add_conditional_edges("a", lambda state: "b")
    topology = read(builder)
    assert Group("b", frozenset("a"), conditional=True, unknown=True) in groups(
        topology
    )
    assert topology.level.open_ended == {"a"}
    assert len(topology.findings) == 1


def test_deferred_nodes_are_marked(recorder: Any) -> None:
    topology = read(recorder.graph({"a": "b"}, deferred="b"))
    assert topology.graph is not None
    assert [node.name for node in topology.graph.nodes if node.deferred] == ["b"]


def test_the_order_of_triggers_is_the_same_in_every_process(recorder: Any) -> None:
    topology = read(recorder.graph({"a": "dcb"}))
    assert topology.graph is not None
    targets = [group.target for group in topology.graph.groups]
    assert targets == ["a", "b", "c", "d"]


def test_a_name_that_the_wire_refuses_leaves_the_graph_out(recorder: Any) -> None:
    topology = read(recorder.graph({"a": "b"}), "x" * 300)
    assert topology.graph is None
    assert "1 to 256 characters" in topology.findings[0]
