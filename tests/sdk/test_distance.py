"""Steps-to-execution against values computed by hand."""

from __future__ import annotations

from kvflow_sdk.distance import Frontier, steps_to_execution
from kvflow_sdk.graph import AgentStepGraph, GraphBuilder


def graph_of(
    *edges: tuple[str, str],
    entry: str = "a",
    barriers: tuple[tuple[str, str], ...] = (),
    deferred: str = "",
) -> AgentStepGraph:
    """One-letter nodes; a barrier is ("sources", "target")."""
    builder = GraphBuilder()
    names = {name for pair in (*edges, *barriers) for part in pair for name in part}
    for name in sorted(names | {entry}):
        builder.add_node(name, deferred=name in deferred)
    for source, target in edges:
        builder.add_edge(source, target)
    for sources, target in barriers:
        builder.add_barrier(sources, target)
    return builder.add_entry(entry).build()


def executing(*names: str) -> Frontier:
    return Frontier(executing=frozenset(names))


# The paper's Figure 1: planner, executor, expresser, reviewer, and round again.
FIGURE_1 = (
    GraphBuilder()
    .add_node("planner")
    .add_node("executor")
    .add_node("expresser")
    .add_node("reviewer")
    .add_entry("planner")
    .add_edge("planner", "executor")
    .add_edge("executor", "expresser")
    .add_edge("expresser", "reviewer")
    .add_edge("reviewer", "planner", conditional=True)
    .build()
)


def test_figure_1_counts_along_the_sequence() -> None:
    assert steps_to_execution(FIGURE_1, executing("planner")) == {
        "planner": 0,
        "executor": 1,
        "expresser": 2,
        "reviewer": 3,
    }


def test_figure_1_counts_through_the_loop_to_what_ran_before() -> None:
    # LRU would evict the executor here, the expresser is the one to lose.
    assert steps_to_execution(FIGURE_1, executing("reviewer")) == {
        "reviewer": 0,
        "planner": 1,
        "executor": 2,
        "expresser": 3,
    }


# Figure 3: two paths of unequal length, a→b→c and a→d, meet in e.
BRANCHES = (("a", "b"), ("b", "c"), ("a", "d"), ("e", "f"))


def test_figure_3_a_barrier_takes_the_maximum_plus_one() -> None:
    graph = graph_of(*BRANCHES, barriers=(("cd", "e"),))
    assert steps_to_execution(graph, executing("a")) == {
        "a": 0,
        "b": 1,
        "d": 1,
        "c": 2,
        "e": 3,
        "f": 4,
    }


def test_figure_3_either_or_takes_the_minimum_plus_one() -> None:
    graph = graph_of(*BRANCHES, ("c", "e"), ("d", "e"))
    assert steps_to_execution(graph, executing("a")) == {
        "a": 0,
        "b": 1,
        "d": 1,
        "c": 2,
        "e": 2,
        "f": 3,
    }


def test_before_anything_runs_the_entry_is_one_step_away() -> None:
    graph = graph_of(("a", "b"))
    steps = steps_to_execution(graph, Frontier(started=False))
    assert steps == {"a": 1, "b": 2}


def test_start_is_no_source_once_the_run_has_started() -> None:
    assert steps_to_execution(graph_of(("a", "b")), executing("b")) == {"b": 0}


def test_what_has_fired_is_at_zero_and_a_source() -> None:
    frontier = Frontier(fired=frozenset(["a"]))
    assert steps_to_execution(graph_of(("a", "b")), frontier) == {"a": 0, "b": 1}


def test_several_sources_give_the_nearest() -> None:
    graph = graph_of(("a", "b"), ("b", "c"), ("c", "d"), ("x", "d"))
    steps = steps_to_execution(graph, executing("a", "x"))
    assert steps == {"a": 0, "x": 0, "b": 1, "d": 1, "c": 2}


def test_a_node_that_ended_in_a_running_superstep_is_a_source_but_not_reported() -> (
    None
):
    graph = graph_of(("a", "b"), ("x", "y"))
    frontier = Frontier(executing=frozenset("x"), holding=frozenset("a"))
    assert steps_to_execution(graph, frontier) == {"x": 0, "b": 1, "y": 1}


def test_a_node_that_ended_is_reported_when_a_loop_leads_back_to_it() -> None:
    graph = graph_of(("a", "b"), ("b", "a"))
    frontier = Frontier(holding=frozenset("a"))
    assert steps_to_execution(graph, frontier) == {"b": 1, "a": 2}


def test_a_barrier_with_one_finished_parent_waits_for_the_other_only() -> None:
    graph = graph_of(("b", "c"), barriers=(("ac", "d"),))
    (number,) = graph.triggers("d")
    frontier = Frontier(executing=frozenset("b"), arrivals={number: frozenset("a")})
    assert steps_to_execution(graph, frontier) == {"b": 0, "c": 1, "d": 2}


def test_an_arrival_counts_inside_its_own_group_only() -> None:
    graph = graph_of(("a", "y"), barriers=(("ab", "d"), ("ac", "e")))
    d, e = graph.triggers("d")[0], graph.triggers("e")[0]
    assert d != e
    frontier = Frontier(executing=frozenset("bc"), arrivals={d: frozenset("a")})
    assert steps_to_execution(graph, frontier) == {"b": 0, "c": 0, "d": 1}


def test_an_arrived_member_that_runs_again_is_not_counted_twice() -> None:
    graph = graph_of(barriers=(("ab", "d"),))
    frontier = Frontier(
        executing=frozenset("a"),
        arrivals={graph.triggers("d")[0]: frozenset("a")},
    )
    assert steps_to_execution(graph, frontier) == {"a": 0}


def test_a_barrier_that_has_received_everything_is_one_step_away() -> None:
    graph = graph_of(("d", "f"), barriers=(("ab", "d"),))
    frontier = Frontier(arrivals={graph.triggers("d")[0]: frozenset("ab")})
    assert steps_to_execution(graph, frontier) == {"d": 1, "f": 2}


def test_a_barrier_over_a_branch_that_cannot_come_is_unreachable() -> None:
    # The router took b; c never runs, so neither does the barrier.
    graph = graph_of(("a", "b"), ("a", "c"), barriers=(("bc", "d"),))
    assert steps_to_execution(graph, executing("b")) == {"b": 0}


def test_what_no_edge_leads_to_is_left_out() -> None:
    graph = graph_of(("a", "b"), ("x", "y"))
    assert steps_to_execution(graph, executing("a")) == {"a": 0, "b": 1}


def test_the_nearest_of_a_barrier_and_an_edge_counts() -> None:
    graph = graph_of(
        ("a", "b"), ("b", "c"), ("c", "e"), ("e", "d"), barriers=(("bc", "d"),)
    )
    assert steps_to_execution(graph, executing("a"))["d"] == 3


def test_nested_loops_settle_at_the_shortest_way_round() -> None:
    # Inner loop b→c→b, outer loop a→b→c→d→a.
    graph = graph_of(("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "a"))
    assert steps_to_execution(graph, executing("c")) == {
        "c": 0,
        "b": 1,
        "d": 1,
        "a": 2,
    }


def test_a_barrier_in_a_loop_waits_for_the_longer_way_round() -> None:
    graph = graph_of(
        ("a", "b"),
        ("b", "b"),
        ("a", "c"),
        ("c", "e"),
        ("d", "a"),
        barriers=(("be", "d"),),
    )
    assert steps_to_execution(graph, executing("d")) == {
        "d": 0,
        "a": 1,
        "b": 2,
        "c": 2,
        "e": 3,
    }
    assert steps_to_execution(graph, executing("a"))["d"] == 3


def test_a_deferred_node_comes_after_everything_else() -> None:
    graph = graph_of(("a", "d"), ("a", "b"), ("b", "c"), ("d", "e"), deferred="d")
    assert steps_to_execution(graph, executing("a")) == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 3,
        "e": 4,
    }


def test_a_deferred_node_that_nothing_triggers_is_unreachable() -> None:
    graph = graph_of(("a", "b"), ("x", "d"), deferred="d")
    assert steps_to_execution(graph, executing("a")) == {"a": 0, "b": 1}


def test_deferred_nodes_that_are_triggered_together_run_together() -> None:
    graph = graph_of(("a", "b"), ("a", "d"), ("b", "e"), ("d", "e"), deferred="de")
    steps = steps_to_execution(graph, executing("a"))
    assert steps == {"a": 0, "b": 1, "d": 2, "e": 2}


def test_a_deferred_node_behind_another_comes_in_a_later_round() -> None:
    graph = graph_of(("a", "d"), ("d", "x"), ("d", "e"), deferred="de")
    steps = steps_to_execution(graph, executing("a"))
    assert steps == {"a": 0, "d": 1, "x": 2, "e": 3}


def test_a_deferred_node_that_executes_is_at_zero() -> None:
    graph = graph_of(("a", "d"), ("d", "e"), deferred="d")
    assert steps_to_execution(graph, executing("d")) == {"d": 0, "e": 1}


def test_a_name_outside_the_graph_counts_while_it_runs() -> None:
    graph = graph_of(("a", "b"))
    frontier = Frontier(
        executing=frozenset(["a", "helper"]), holding=frozenset(["ghost"])
    )
    assert steps_to_execution(graph, frontier) == {"a": 0, "b": 1, "helper": 0}


def test_an_empty_graph_has_no_steps() -> None:
    assert steps_to_execution(AgentStepGraph((), ()), Frontier(started=False)) == {}
