"""What a run reports, event by event; the expected steps are worked out by hand."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kvflow_sdk.graph import AgentStepGraph, GraphBuilder
from kvflow_sdk.run import Run
from kvflow_sdk.wire import FixedMark, StepUpdate


class Recorder:
    """A listener, and the run it listens to."""

    def __init__(self, graph: AgentStepGraph | None) -> None:
        self.updates: list[StepUpdate] = []
        self.run = Run(graph, client="c", listener=self.updates.append)

    @property
    def steps(self) -> list[dict[str, int] | None]:
        return [update.steps for update in self.updates]

    def after(self, event: str, *nodes: str) -> dict[str, int] | None:
        getattr(self.run, event)(*nodes)
        return self.run.snapshot().steps


def diamond() -> GraphBuilder:
    """a → b, a → c, and d behind both."""
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_node(name)
    return builder.add_entry("a").add_edge("a", "b").add_edge("a", "c")


SEQUENCE = AgentStepGraph.sequence(["a", "b", "c"])
BARRIER = diamond().add_barrier(["b", "c"], "d").build()
EITHER = diamond().add_edge("b", "d").add_edge("c", "d").build()


def test_the_first_snapshot_says_who_runs_first() -> None:
    assert Recorder(SEQUENCE).steps == [{"a": 1, "b": 2, "c": 3}]


def test_a_sequence_in_supersteps_reports_each_move_once() -> None:
    recorder = Recorder(SEQUENCE)
    for node in "abc":
        recorder.run.superstep(node)
        recorder.run.start(node)
        recorder.run.end(node)
    recorder.run.finish()
    assert recorder.steps == [
        {"a": 1, "b": 2, "c": 3},
        {"a": 0, "b": 1, "c": 2},
        {"b": 1, "c": 2},
        {"b": 0, "c": 1},
        {"c": 1},
        {"c": 0},
        {},
        {},
    ]
    assert [update.final for update in recorder.updates] == [False] * 7 + [True]


def test_a_sequence_without_announcements_reports_the_same() -> None:
    recorder = Recorder(SEQUENCE)
    assert recorder.after("start", "a") == {"a": 0, "b": 1, "c": 2}
    assert recorder.after("end", "a") == {"b": 1, "c": 2}
    assert recorder.after("start", "b") == {"b": 0, "c": 1}
    assert recorder.after("end", "b") == {"c": 1}
    assert recorder.after("start", "c") == {"c": 0}


def test_what_fired_is_at_zero_until_it_starts() -> None:
    recorder = Recorder(BARRIER)
    recorder.run.superstep("a")
    recorder.run.start("a")
    recorder.run.end("a")
    assert recorder.after("superstep", "b", "c") == {"b": 0, "c": 0, "d": 1}
    assert recorder.after("start", "b") == {"b": 0, "c": 0, "d": 1}
    assert recorder.after("end", "b") == {"c": 0, "d": 1}
    assert recorder.after("start", "c") == {"c": 0, "d": 1}


def test_siblings_are_inferred_as_fired_without_announcements() -> None:
    recorder = Recorder(BARRIER)
    recorder.run.start("a")
    recorder.run.end("a")
    assert recorder.after("start", "b") == {"b": 0, "c": 0, "d": 1}


def test_a_branch_not_taken_is_not_inferred_as_fired() -> None:
    builder = GraphBuilder().add_node("a").add_node("b").add_node("c").add_entry("a")
    builder.add_edge("a", "b", conditional=True).add_edge("a", "c", conditional=True)
    recorder = Recorder(builder.build())
    recorder.run.start("a")
    assert recorder.after("end", "a") == {"b": 1, "c": 1}
    assert recorder.after("start", "b") == {"b": 0}


def test_parallel_entries_are_inferred_as_fired() -> None:
    builder = GraphBuilder().add_node("a").add_node("b").add_entry("a", "b")
    recorder = Recorder(builder.build())
    assert recorder.after("start", "a") == {"a": 0, "b": 0}


def test_a_barrier_remembers_what_arrived_in_an_earlier_superstep() -> None:
    # a → b → x, a → c, then d behind x and c; x comes one superstep later.
    builder = GraphBuilder()
    for name in "abcdx":
        builder.add_node(name)
    builder.add_entry("a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "x")
    recorder = Recorder(builder.add_barrier(["x", "c"], "d").build())
    recorder.run.superstep("b", "c")
    for node in "bc":
        recorder.run.start(node)
    assert recorder.after("end", "c") == {"b": 0, "x": 1, "d": 2}
    recorder.run.end("b")
    assert recorder.after("superstep", "x") == {"x": 0, "d": 1}
    recorder.run.start("x")
    assert recorder.after("end", "x") == {"d": 1}
    assert recorder.after("superstep", "d") == {"d": 0}


def test_a_barrier_begins_anew_after_it_fired() -> None:
    builder = diamond().add_barrier(["b", "c"], "d").add_edge("d", "b")
    recorder = Recorder(builder.build())
    recorder.run.superstep("b", "c")
    for node in "bc":
        recorder.run.start(node)
        recorder.run.end(node)
    recorder.run.superstep("d")
    recorder.run.start("d")
    recorder.run.end("d")
    # b alone does not complete the barrier: c would have to come again, too.
    assert recorder.after("superstep", "b") == {"b": 0}


def test_an_either_or_node_is_next_again_while_the_other_branch_runs() -> None:
    recorder = Recorder(EITHER)
    recorder.run.superstep("d", "c")
    recorder.run.start("d")
    recorder.run.end("d")
    assert recorder.run.snapshot().steps == {"c": 0, "d": 1}


def test_a_node_executes_until_its_last_execution_ends() -> None:
    recorder = Recorder(SEQUENCE)
    recorder.run.superstep("a", "a", "a")
    recorder.run.start("a")
    recorder.run.start("a")
    assert recorder.after("end", "a") == {"a": 0, "b": 1, "c": 2}
    recorder.run.start("a")
    assert recorder.after("end", "a") == {"a": 0, "b": 1, "c": 2}
    assert recorder.after("end", "a") == {"b": 1, "c": 2}


def test_a_node_that_will_be_repeated_stays_at_zero() -> None:
    recorder = Recorder(SEQUENCE)
    recorder.run.superstep("a")
    recorder.run.start("a")
    assert recorder.after("suspend", "a") == {"a": 0, "b": 1, "c": 2}
    assert recorder.after("start", "a") == {"a": 0, "b": 1, "c": 2}
    assert len(recorder.updates) == 2


def test_a_paused_run_keeps_its_place_and_its_arrivals() -> None:
    recorder = Recorder(BARRIER)
    recorder.run.superstep("b", "c")
    for node in "bc":
        recorder.run.start(node)
    recorder.run.end("c")
    assert recorder.after("pause") == {"b": 0, "d": 1}
    assert recorder.after("resume", "b") == {"b": 0, "d": 1}
    recorder.run.start("b")
    recorder.run.end("b")
    assert recorder.after("superstep", "d") == {"d": 0}


def test_a_deferred_node_stays_in_sight_while_the_rest_runs() -> None:
    # a → d (deferred), a → b → c: d waits for c though a is long gone.
    builder = GraphBuilder().add_node("d", deferred=True)
    for name in "abc":
        builder.add_node(name)
    builder.add_entry("a").add_edge("a", "d").add_edge("a", "b").add_edge("b", "c")
    recorder = Recorder(builder.build())
    assert recorder.after("superstep", "a") == {"a": 0, "b": 1, "c": 2, "d": 3}
    recorder.run.start("a")
    recorder.run.end("a")
    assert recorder.after("superstep", "b") == {"b": 0, "c": 1, "d": 2}
    recorder.run.start("b")
    recorder.run.end("b")
    assert recorder.after("superstep", "c") == {"c": 0, "d": 1}
    recorder.run.start("c")
    recorder.run.end("c")
    assert recorder.after("superstep", "d") == {"d": 0}
    recorder.run.start("d")
    assert recorder.after("end", "d") == {}


def test_without_a_graph_the_steps_are_what_executes() -> None:
    recorder = Recorder(None)
    assert recorder.after("start", "planner") == {"planner": 0}
    assert recorder.after("start", "tool") == {"planner": 0, "tool": 0}
    assert recorder.after("end", "tool") == {"planner": 0}
    assert recorder.after("end", "planner") == {}


def test_a_name_outside_the_graph_executes_like_any_other() -> None:
    recorder = Recorder(SEQUENCE)
    recorder.run.start("a")
    assert recorder.after("start", "stranger")["stranger"] == 0  # type: ignore[index]
    recorder.run.end("stranger")
    assert recorder.run.snapshot().steps == {"a": 0, "b": 1, "c": 2}


def test_an_end_without_a_start_changes_nothing() -> None:
    recorder = Recorder(SEQUENCE)
    assert recorder.after("end", "a") == {"a": 1, "b": 2, "c": 3}


def test_seq_grows_with_every_change_and_only_then() -> None:
    recorder = Recorder(SEQUENCE)
    recorder.run.start("a")
    recorder.run.start("a")
    recorder.run.end("a")
    recorder.run.end("a")
    assert [update.seq for update in recorder.updates] == [1, 2, 3]
    assert recorder.run.snapshot().seq == 3


def test_a_snapshot_carries_the_call_that_asks_for_it() -> None:
    run = Run(SEQUENCE, client="me", run_id="r1")
    mark = FixedMark(message=0, chars=12)
    assert run.snapshot(agent="a", fixed=mark) == StepUpdate(
        client="me",
        run="r1",
        seq=1,
        agent="a",
        steps={"a": 1, "b": 2, "c": 3},
        fixed=mark,
    )


def test_two_runs_have_different_ids() -> None:
    assert Run(None, client="c").id != Run(None, client="c").id


def test_after_the_end_nothing_changes_any_more() -> None:
    recorder = Recorder(SEQUENCE)
    recorder.run.finish()
    recorder.run.start("b")
    recorder.run.finish()
    assert [update.final for update in recorder.updates] == [False, True]
    assert recorder.run.snapshot().final


def test_a_listener_that_raises_does_not_reach_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(update: StepUpdate) -> None:
        raise RuntimeError("full")

    run = Run(SEQUENCE, client="c", listener=broken)
    run.start("a")
    assert run.snapshot().steps == {"a": 0, "b": 1, "c": 2}
    assert "listener" in caplog.text


def test_a_listener_may_ask_the_run_again() -> None:
    seen: list[Any] = []
    runs: list[Run] = []

    def curious(update: StepUpdate) -> None:
        seen.extend(run.snapshot().seq for run in runs)

    runs.append(Run(SEQUENCE, client="c", listener=curious))
    runs[0].start("a")
    assert seen == [2]


def test_events_of_many_threads_add_up() -> None:
    recorder = Recorder(SEQUENCE)

    def work() -> None:
        for _ in range(100):
            recorder.run.start("a")
            recorder.run.end("a")

    recorder.run.start("a")
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.run.snapshot().steps == {"a": 0, "b": 1, "c": 2}
    assert recorder.after("end", "a") == {"b": 1, "c": 2}
    assert recorder.run.snapshot().seq == 3


def test_a_superstep_of_an_inner_workflow_leaves_the_outer_one_alone() -> None:
    run = Run(None, client="c")
    run.superstep("outer", "team|a")
    run.start("outer")
    run.start("team|a")
    run.end("team|a")
    run.superstep("team|b", "team", subtree="team")
    assert run.snapshot().steps == {"outer": 0, "team|b": 0, "team": 0}


def test_an_inner_workflow_ends_for_its_own_subtree_only() -> None:
    builder = GraphBuilder().add_node("a").add_node("team|b").add_node("teams")
    graph = builder.add_entry("a").add_edge("a", "team|b").add_edge("a", "teams")
    run = Run(graph.build(), client="c")
    run.superstep("a")
    run.start("a")
    run.end("a")
    run.superstep("team|b", subtree="team")
    assert run.snapshot().steps == {"team|b": 0, "teams": 1}


def test_told_arrivals_replace_those_that_the_graph_implies() -> None:
    builder = GraphBuilder().add_node("a").add_node("b").add_node("c")
    builder.add_entry("a", "b").add_barrier(["a", "b"], "c")
    graph = builder.build()
    group = graph.triggers("c")[0]
    run = Run(graph, client="c")
    run.superstep("a")
    run.start("a")
    run.end("a")
    run.superstep("b", arrivals={group: []})
    assert run.snapshot().steps == {"b": 0}
    run.superstep("b", arrivals={group: ["a"]})
    assert run.snapshot().steps == {"b": 0, "c": 1}
