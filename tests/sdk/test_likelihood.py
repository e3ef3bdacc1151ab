"""What is learned from runs, and what follows from it."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

import kvflow_sdk as kvflow
from kvflow_sdk.distance import Frontier
from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder, Group
from kvflow_sdk.likelihood import (
    FORGET_AT,
    MAX_TARGETS,
    MIN_EVIDENCE,
    Transitions,
    likelihoods,
)
from kvflow_sdk.run import Run


def learned(**counts: str) -> Transitions:
    """a="bbc": a was left three times, for b, b and c; "." is the end."""
    transitions = Transitions()
    for source, targets in counts.items():
        for target in targets:
            transitions.observe(source, [] if target == "." else [target])
    return transitions


def branching() -> AgentStepGraph:
    """a → b or c; b → d; d → e or f."""
    builder = GraphBuilder()
    for name in "abcdef":
        builder.add_node(name)
    builder.add_entry("a").add_edge("b", "d")
    for source, targets in {"a": "bc", "d": "ef"}.items():
        for target in targets:
            builder.add_edge(source, target, conditional=True)
    return builder.build()


def likely(graph: AgentStepGraph, transitions: Transitions, **at: str) -> object:
    frontier = Frontier(**{name: frozenset(value) for name, value in at.items()})
    weights = transitions.weights(graph)
    return None if weights is None else likelihoods(graph, frontier, weights)


def play(run: Run, names: str) -> None:
    for name in names:
        run.start(name)
        run.end(name)
    run.finish()


def test_a_frequency_needs_a_minimum_of_evidence() -> None:
    assert learned(a="b" * (MIN_EVIDENCE - 1)).frequency("a", "b") is None
    assert learned(a="bbc").frequency("a", "b") == pytest.approx(2 / 3)
    assert learned(a="bbc").frequency("a", "x") == 0


def test_the_end_takes_its_share() -> None:
    assert learned(a="bb..").frequency("a", "b") == 0.5


def test_likelihoods_are_products_along_the_best_path() -> None:
    transitions = learned(a="bbbc", d="eeef")
    assert likely(branching(), transitions, executing="a") == {
        "b": 0.75,
        "c": 0.25,
        "d": 0.75,
        "e": 0.562,
        "f": 0.188,
    }


def test_what_lies_behind_an_unknown_choice_is_left_out() -> None:
    transitions = learned(a="bbbc")
    found = likely(branching(), transitions, executing="a")
    assert found == {"b": 0.75, "c": 0.25, "d": 0.75}


def test_without_evidence_nothing_is_said() -> None:
    assert likely(branching(), learned(x="yyy"), executing="a") is None


def test_a_barrier_is_as_likely_as_its_least_likely_member() -> None:
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_node(name)
    builder.add_entry("a").add_barrier("bc", "d")
    for target in "bc":
        builder.add_edge("a", target, conditional=True)
    transitions = Transitions()
    for targets in ("bc", "bc", "b", "b"):
        transitions.observe("a", list(targets))
    found = likely(builder.build(), transitions, executing="a")
    assert found == {"c": 0.5, "d": 0.5}


def test_steps_stay_what_they_are() -> None:
    graph, transitions = branching(), learned(a="c" * 9)
    run = Run(graph, client="c", transitions=transitions)
    plain = Run(graph, client="c")
    for each in (run, plain):
        each.start("a")
    assert run.snapshot().steps == plain.snapshot().steps
    assert run.snapshot().likelihood is None, "c is certain, and b never was seen"


def test_a_program_without_a_graph_gets_one_after_a_few_runs() -> None:
    transitions = Transitions()
    for _ in range(MIN_EVIDENCE):
        assert transitions.graph() is None
        play(Run(None, client="c", transitions=transitions), "abc")
    run = Run(None, client="c", transitions=transitions)
    assert run.snapshot().steps == {"a": 1, "b": 2, "c": 3}
    run.start("a")
    assert run.snapshot().steps == {"a": 0, "b": 1, "c": 2}


def test_agents_that_start_together_follow_the_same_one() -> None:
    transitions = Transitions()
    for _ in range(MIN_EVIDENCE):
        run = Run(None, client="c", transitions=transitions)
        play_fan_out(run)
    graph = transitions.graph()
    assert graph is not None
    assert {(min(g.sources), g.target) for g in graph.groups} == {
        (START, "a"),
        ("a", "b"),
        ("a", "c"),
        ("b", "d"),
        ("c", "d"),
    }


def play_fan_out(run: Run) -> None:
    """a, then b and c at once, then d."""
    run.start("a")
    run.end("a")
    for event in (run.start, run.end):
        for name in "bc":
            event(name)
    run.start("d")
    run.end("d")
    run.finish()


def test_an_agent_inside_another_follows_that_one() -> None:
    transitions = Transitions()
    for _ in range(MIN_EVIDENCE):
        run = Run(None, client="c", transitions=transitions)
        run.start("manager")
        for name in ("plan", "write"):
            run.start(name, caller="manager")
            run.end(name, caller="manager")
        run.end("manager")
        run.finish()
    run = Run(None, client="c", transitions=transitions)
    run.start("manager")
    assert run.snapshot().steps == {"manager": 0, "plan": 1, "write": 2}


def test_plain_functions_are_learned_without_a_word(
    default_client: kvflow.Client,
) -> None:
    @kvflow.agent("plan")
    def plan() -> None:
        pass

    @kvflow.agent("write")
    def write() -> dict[str, int] | None:
        call = kvflow.current()
        return None if call is None else call.run.snapshot().steps

    for _ in range(MIN_EVIDENCE + 1):
        with kvflow.workflow() as run:
            before = None if run is None else run.snapshot().steps
            plan()
            write()
    assert before == {"plan": 1, "write": 2}


def test_assumed_edges_give_way_to_what_was_seen() -> None:
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_node(name)
    builder.add_entry("a")
    for target in "bc":
        builder.add_edge("a", target, conditional=True, unknown=True)
    graph = builder.build()
    few, enough = learned(a="dd"), learned(a="ddd")
    assert few.refine(graph) is graph
    assert set(enough.refine(graph).groups) == {
        Group("a", frozenset([START])),
        Group("d", frozenset("a"), conditional=True),
    }


def test_declared_edges_stay_though_they_were_never_seen() -> None:
    graph = branching()
    assert set(learned(a="bbbb").refine(graph).groups) == set(graph.groups)


def test_a_graph_that_needs_no_change_stays_the_same_object() -> None:
    transitions, graph = learned(a="bbb"), branching()
    first = transitions.refine(graph)
    transitions.observe("a", ["b"])
    transitions.observe("a", ["b"])
    assert transitions.refine(graph) is first


def test_old_habits_are_forgotten() -> None:
    transitions = learned(a="b" * FORGET_AT)
    for _ in range(FORGET_AT):
        transitions.observe("a", ["c"])
    found = transitions.frequency("a", "c")
    assert found is not None
    assert found > 0.6


def test_the_followers_of_one_agent_are_bounded() -> None:
    transitions = Transitions()
    for number in range(2 * MAX_TARGETS):
        transitions.observe("a", [f"n{number}"])
    assert len(transitions.followers("a")) == MAX_TARGETS


def test_what_was_learned_survives_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "learned.json"
    config = kvflow.Config(learned=str(file))
    with kvflow.Client(config=config) as client:
        for _ in range(MIN_EVIDENCE):
            play(client.start_run(), "abc")
    with kvflow.Client(config=config) as client:
        assert client.start_run().snapshot().steps == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 9}', '{"version": 1, "left": 3}']
)
def test_a_file_that_cannot_be_used_is_said_and_left_out(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "learned.json"
    file.write_text(text)
    with caplog.at_level(logging.WARNING):
        transitions = Transitions(file)
    assert transitions.graph() is None
    assert "learned.json is not used" in caplog.text


def test_a_folder_that_is_not_there_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transitions = Transitions(tmp_path / "none" / "learned.json")
    transitions.observe("a", ["b"])
    transitions.save()
    assert "cannot be written" in caplog.text


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "learned.json"
    transitions = Transitions(file)
    transitions.observe("a", ["b"])
    transitions.save()
    assert json.loads(file.read_text())["moved"] == {"a": {"b": 1}}
    assert list(tmp_path.iterdir()) == [file]


def test_learning_can_be_turned_off() -> None:
    with kvflow.Client(config=kvflow.Config(learn=False)) as client:
        for _ in range(MIN_EVIDENCE):
            play(client.start_run(), "ab")
        assert client.start_run().snapshot().steps == {}


def test_runs_of_many_threads_add_up() -> None:
    transitions = Transitions()

    def work() -> None:
        for _ in range(20):
            play(Run(None, client="c", transitions=transitions), "ab")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert transitions.frequency("a", "b") == 1.0
