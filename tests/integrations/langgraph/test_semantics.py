"""LangGraph's measured semantics: which steps hold while each node executes."""

from __future__ import annotations

import threading
from typing import Any

from langgraph.graph import END, START

# Two paths of unequal length, a→b→x and a→c.
UNEQUAL = {"a": "bc", "b": "x"}


def test_a_sequence_counts_down(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "b", "b": "c", "c": "."}))
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 2}),
        ("b", {"b": 0, "c": 1}),
        ("c", {"c": 0}),
    ]


def test_the_entry_is_announced_before_anything_runs(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "b"}))
    assert recorder.client.steps[0] == {"a": 1, "b": 2}


def test_the_last_snapshot_is_final(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "b"}))
    assert [u.final for u in recorder.client.updates][-2:] == [False, True]


def test_single_edges_of_unequal_depth_run_the_node_twice(recorder: Any) -> None:
    result = recorder.run(recorder.graph({**UNEQUAL, "x": "d", "c": "d"}))
    assert result["log"].count("d") == 2
    first = recorder.seen[0]
    assert first == ("a", {"a": 0, "b": 1, "c": 1, "x": 2, "d": 2})
    # d is due after c, and again after x.
    assert {"b": 0, "c": 0, "x": 1, "d": 1} in recorder.client.steps
    assert {"x": 0, "d": 0} in recorder.client.steps
    assert recorder.seen[-1] == ("d", {"d": 0})


def test_a_join_waits_for_the_longer_path(recorder: Any) -> None:
    result = recorder.run(recorder.graph(UNEQUAL, joins={"xc": "d"}))
    assert result["log"].count("d") == 1
    assert recorder.seen[0] == ("a", {"a": 0, "b": 1, "c": 1, "x": 2, "d": 3})
    assert {"b": 0, "c": 0, "x": 1, "d": 2} in recorder.client.steps
    # c has arrived a superstep ago; x alone is missing.
    assert recorder.seen[-2:] == [("x", {"x": 0, "d": 1}), ("d", {"d": 0})]


def test_a_deferred_node_waits_for_everything_else(recorder: Any) -> None:
    edges = {**UNEQUAL, "x": "d", "c": "d"}
    result = recorder.run(recorder.graph(edges, deferred="d"))
    assert result["log"].count("d") == 1
    assert recorder.seen[0] == ("a", {"a": 0, "b": 1, "c": 1, "x": 2, "d": 3})
    assert {"b": 0, "c": 0, "x": 1, "d": 2} in recorder.client.steps
    assert recorder.seen[-2:] == [("x", {"x": 0, "d": 1}), ("d", {"d": 0})]


def test_a_deferred_node_triggered_long_ago_stays_in_sight(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "db", "b": "c"}, deferred="d"))
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 2, "d": 3}),
        ("b", {"b": 0, "c": 1, "d": 2}),
        ("c", {"c": 0, "d": 1}),
        ("d", {"d": 0}),
    ]


def test_a_join_or_an_edge_runs_the_node_at_each(recorder: Any) -> None:
    # AND(b, x) → d, or e → d.
    edges = {"a": "bce", "c": "x", "e": "d"}
    result = recorder.run(recorder.graph(edges, joins={"bx": "d"}))
    assert result["log"].count("d") == 2
    assert recorder.seen[0] == ("a", {"a": 0, "b": 1, "c": 1, "e": 1, "d": 2, "x": 2})
    assert {"b": 0, "c": 0, "e": 0, "d": 1, "x": 1} in recorder.client.steps
    assert {"d": 0, "x": 0} in recorder.client.steps
    assert recorder.seen[-1] == ("d", {"d": 0})


def test_a_join_over_a_branch_not_taken_becomes_unreachable(recorder: Any) -> None:
    builder = recorder.graph({}, joins={"bc": "d"})
    builder.add_conditional_edges("a", lambda state: "b", ["b", "c"])
    recorder.run(builder)
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 1, "d": 2}),
        ("b", {"b": 0}),
    ]


def test_two_deferred_nodes_run_together_and_the_second_again(recorder: Any) -> None:
    result = recorder.run(recorder.graph({"a": "de", "d": "e"}, deferred="de"))
    assert result["log"].count("e") == 2
    assert recorder.seen[0] == ("a", {"a": 0, "d": 1, "e": 1})
    assert {"d": 0, "e": 0} in recorder.client.steps
    assert recorder.seen[-1] == ("e", {"e": 0})


def test_the_end_is_neither_a_node_nor_a_barrier(recorder: Any) -> None:
    builder = recorder.graph({"a": "bc"})
    builder.add_edge(["b", "c"], END)
    recorder.run(builder)
    assert recorder.seen[0] == ("a", {"a": 0, "b": 1, "c": 1})


def test_a_loop_leads_back_until_the_router_leaves_it(recorder: Any) -> None:
    builder = recorder.graph({"a": "b"})
    rounds = iter(["a", END])
    builder.add_conditional_edges("b", lambda state: next(rounds), ["a", END])
    recorder.run(builder)
    assert (
        recorder.seen
        == [
            ("a", {"a": 0, "b": 1}),
            ("b", {"b": 0, "a": 1}),
        ]
        * 2
    )


def test_a_conditional_entry_makes_each_branch_possible(recorder: Any) -> None:
    builder = recorder.graph({"b": "c"})
    builder.edges.discard((START, "a"))
    builder.add_conditional_edges(START, lambda state: "b", ["a", "b"])
    recorder.run(builder)
    assert recorder.client.steps[0] == {"a": 1, "b": 1, "c": 2}
    assert recorder.seen == [("b", {"b": 0, "c": 1}), ("c", {"c": 0})]


def test_a_successor_waits_for_the_slow_sibling_of_its_predecessor(
    recorder: Any,
) -> None:
    # b is fast; its successor x starts only after the slow c.
    b_is_over = threading.Event()
    actions = {"c": b_is_over.wait}
    app = recorder.wrap(
        recorder.graph({"a": "bc", "b": "x"}, actions=actions).compile()
    )
    for chunk in app.stream({"log": []}, stream_mode="updates"):
        if "b" in chunk:
            b_is_over.set()
    assert ("c", {"c": 0, "x": 1}) in recorder.seen


def test_a_sibling_that_may_not_start_yet_is_at_zero(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "bc"}, joins={"bc": "d"}), max_concurrency=1)
    assert recorder.seen == [
        ("a", {"a": 0, "b": 1, "c": 1, "d": 2}),
        ("b", {"b": 0, "c": 0, "d": 1}),
        ("c", {"c": 0, "d": 1}),
        ("d", {"d": 0}),
    ]


def test_seq_grows_with_every_snapshot(recorder: Any) -> None:
    recorder.run(recorder.graph({"a": "bc"}, joins={"bc": "d"}))
    sequence = [update.seq for update in recorder.client.updates]
    assert sorted(sequence) == list(range(1, len(sequence) + 1))


def test_a_graph_with_a_name_prefixes_its_agents(recorder: Any) -> None:
    app = recorder.wrap(recorder.graph({"a": "b"}).compile(name="research"))
    app.invoke({"log": []})
    assert recorder.seen[0] == ("research|a", {"research|a": 0, "research|b": 1})


def test_the_name_given_to_wrap_goes_first(recorder: Any) -> None:
    compiled = recorder.graph({"a": "."}).compile(name="research")
    recorder.wrap(compiled, name="mine").invoke({"log": []})
    assert recorder.seen == [("mine|a", {"mine|a": 0})]
