from __future__ import annotations

import dataclasses

import pytest

from kvflow_sdk.errors import GraphError
from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder, Group, Node


def test_a_sequence_triggers_each_node_by_the_one_before() -> None:
    graph = AgentStepGraph.sequence(["a", "b", "c"])
    assert graph.groups == (
        Group("a", frozenset([START])),
        Group("b", frozenset(["a"])),
        Group("c", frozenset(["b"])),
    )


def test_entry_names_the_nodes_that_start_triggers() -> None:
    graph = GraphBuilder().add_node("a").add_node("b").add_node("c")
    graph.add_entry("a", "b").add_edge("a", "c")
    assert graph.build().entry == ("a", "b")


def test_triggers_of_a_node_are_the_groups_that_lead_to_it() -> None:
    builder = GraphBuilder().add_node("a").add_node("b").add_node("c")
    graph = builder.add_edge("a", "c").add_barrier(["a", "b"], "c").build()
    sources = [graph.groups[number].sources for number in graph.triggers("c")]
    assert sources == [{"a"}, {"a", "b"}]


def test_feeds_of_a_node_are_the_groups_that_wait_for_it() -> None:
    builder = GraphBuilder().add_node("a").add_node("b").add_node("c")
    graph = builder.add_edge("a", "b").add_barrier(["a", "b"], "c").build()
    targets = [graph.groups[number].target for number in graph.feeds("a")]
    assert targets == ["b", "c"]


def test_a_node_may_trigger_itself() -> None:
    graph = GraphBuilder().add_node("a").add_entry("a").add_edge("a", "a").build()
    assert len(graph.triggers("a")) == 2


def test_the_same_edge_twice_is_one_edge() -> None:
    builder = GraphBuilder().add_node("a").add_node("b")
    graph = builder.add_edge("a", "b").add_edge("a", "b").build()
    assert graph.groups == (Group("b", frozenset(["a"])),)


@pytest.mark.parametrize("first", [True, False])
def test_an_edge_that_is_certain_once_is_certain(first: bool) -> None:
    builder = GraphBuilder().add_node("a").add_node("b")
    builder.add_edge("a", "b", conditional=first)
    builder.add_edge("a", "b", conditional=not first)
    assert builder.build().groups == (Group("b", frozenset(["a"])),)


def test_a_graph_cannot_be_changed() -> None:
    graph = AgentStepGraph.sequence(["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.nodes = ()  # type: ignore[misc]


def test_membership_tells_nodes_from_other_names() -> None:
    graph = AgentStepGraph.sequence(["a"])
    assert "a" in graph
    assert START not in graph


def test_an_undeclared_target_is_named() -> None:
    builder = GraphBuilder().add_node("a").add_edge("a", "ghost")
    with pytest.raises(GraphError, match=r"'ghost'.*not declared"):
        builder.build()


def test_an_undeclared_source_is_named() -> None:
    builder = GraphBuilder().add_node("a").add_edge("ghost", "a")
    with pytest.raises(GraphError, match=r"'ghost'.*'a'.*not declared"):
        builder.build()


def test_a_node_declared_twice_is_named() -> None:
    with pytest.raises(GraphError, match="'a': declared twice"):
        GraphBuilder().add_node("a").add_node("a").build()


def test_a_barrier_without_sources_names_its_target() -> None:
    with pytest.raises(GraphError, match="'a': a barrier without sources"):
        GraphBuilder().add_node("a").add_barrier([], "a").build()


def test_start_inside_a_barrier_names_its_target() -> None:
    builder = GraphBuilder().add_node("a").add_node("b")
    with pytest.raises(GraphError, match=r"'b'.*cannot be part of a barrier"):
        builder.add_barrier([START, "a"], "b").build()


def test_an_edge_into_start_names_its_source() -> None:
    with pytest.raises(GraphError, match=r"'a'.*nothing can trigger"):
        GraphBuilder().add_node("a").add_edge("a", START).build()


def test_start_is_refused_as_a_node() -> None:
    with pytest.raises(GraphError, match=START):
        AgentStepGraph((Node(START),), ())


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_name_that_the_wire_refuses_is_refused(name: str) -> None:
    with pytest.raises(GraphError, match="1 to 256 characters"):
        GraphBuilder().add_node(name).build()
