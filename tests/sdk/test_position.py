"""Positions are shared by runs, and forgotten when there are too many."""

from __future__ import annotations

import pytest

from kvflow_sdk import position
from kvflow_sdk.graph import AgentStepGraph, GraphBuilder
from kvflow_sdk.position import Positions, positions_of
from kvflow_sdk.run import Run
from kvflow_sdk.wire import StepUpdate


def loop() -> AgentStepGraph:
    builder = GraphBuilder().add_node("a").add_node("b").add_entry("a")
    return builder.add_edge("a", "b").add_edge("b", "a", conditional=True).build()


def play(graph: AgentStepGraph | None, nodes: str) -> list[StepUpdate]:
    updates: list[StepUpdate] = []
    run = Run(graph, client="c", listener=updates.append)
    for node in nodes:
        run.start(node)
        run.end(node)
    run.finish()
    return updates


def test_a_second_run_meets_no_new_position_and_the_same_snapshots() -> None:
    graph = loop()
    first = play(graph, "abab")
    known = len(positions_of(graph))
    second = play(graph, "abab")
    assert len(positions_of(graph)) == known
    assert [u.steps for u in second] == [u.steps for u in first]
    assert all(a.steps is b.steps for a, b in zip(first, second, strict=True))


def test_a_loop_comes_back_to_the_positions_it_knows() -> None:
    graph = loop()
    play(graph, "ab" * 3)
    known = len(positions_of(graph))
    play(graph, "ab" * 30)
    assert len(positions_of(graph)) == known


def test_two_executions_of_one_agent_are_not_one() -> None:
    positions = Positions(None)
    once, changed = positions.after(positions.first, ("start", "a"))
    assert changed
    twice, changed = positions.after(once, ("start", "a"))
    assert twice is not once
    assert not changed
    assert twice.steps is once.steps
    assert positions.after(twice, ("end", "a")) == (once, False)


def test_equal_steps_of_two_positions_are_reported_once() -> None:
    run_updates: list[StepUpdate] = []
    run = Run(None, client="c", listener=run_updates.append)
    run.start("a")
    run.start("a")
    run.end("a")
    run.end("a")
    assert [u.steps for u in run_updates] == [{"a": 0}, {}]


def test_positions_are_bounded_and_runs_go_on_when_they_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = AgentStepGraph.sequence([f"n{i}" for i in range(40)])
    expected = [u.steps for u in Recorded(graph).updates]
    monkeypatch.setattr(position, "MAX_KNOWN_STEPS", 40 * 10)
    small = AgentStepGraph.sequence([f"n{i}" for i in range(40)])
    for _ in range(3):
        assert [u.steps for u in Recorded(small).updates] == expected
        assert len(positions_of(small)) <= 10


class Recorded:
    """All that a run through the whole of `graph` reports."""

    def __init__(self, graph: AgentStepGraph) -> None:
        self.updates: list[StepUpdate] = []
        run = Run(graph, client="c", listener=self.updates.append)
        for node in graph.nodes:
            run.start(node.name)
            run.end(node.name)
        run.finish()


def test_names_without_end_do_not_fill_a_position() -> None:
    positions = Positions(None)
    for number in range(position.MAX_MOVES * 3):
        found = positions.after(positions.first, ("end", f"n{number}"))
        assert found == (positions.first, False)
    assert len(positions.first.moves) <= position.MAX_MOVES
