"""The StepTable: minima over live runs, sequence numbers, tombstones, leases, caps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.steps import Outcome, StepLimits, StepTable


def update(steps: dict[str, int] | None = None, **fields: Any) -> StepUpdate:
    known = {"client": "c", "run": "r", "seq": 1}
    return StepUpdate(steps=steps, **{**known, **fields})


def test_steps_are_the_minimum_over_live_runs() -> None:
    table = StepTable()
    table.apply(update({"a": 3, "b": 1}, run="one"), 0)
    table.apply(update({"a": 2}, run="two"), 0)
    assert table.steps("c", "a") == 2
    assert table.steps("c", "b") == 1


def test_same_named_agents_of_two_clients_never_meet() -> None:
    table = StepTable()
    table.apply(update({"a": 3}, client="one"), 0)
    table.apply(update({"a": 1}, client="two"), 0)
    assert table.steps("one", "a") == 3


def test_a_snapshot_replaces_the_run_s_last_one_whole() -> None:
    table = StepTable()
    table.apply(update({"a": 1, "b": 2}), 0)
    table.apply(update({"b": 0}, seq=2), 0)
    assert table.steps("c", "a") is None
    assert table.steps("c", "b") == 0


def test_late_and_duplicate_updates_change_nothing() -> None:
    table = StepTable()
    table.apply(update({"a": 1}, seq=5), 0)
    before = table.version
    assert table.apply(update({"a": 9}, seq=5), 0) is Outcome.STALE
    assert table.apply(update({"a": 9}, seq=4), 0) is Outcome.STALE
    assert table.steps("c", "a") == 1
    assert table.version == before


def test_an_ended_run_does_not_come_back() -> None:
    table = StepTable()
    table.apply(update({"a": 1}), 0)
    table.apply(update(final=True, seq=2), 0)
    assert table.apply(update({"a": 0}, seq=3), 0) is Outcome.STALE
    assert table.steps("c", "a") is None
    assert not table.run_is_live("c", "r")


def test_an_update_without_steps_keeps_those_of_the_last_snapshot() -> None:
    table = StepTable()
    table.apply(update({"a": 1}), 0)
    table.apply(update(agent="a", seq=2), 0)
    assert table.steps("c", "a") == 1


def test_the_next_run_is_what_is_left_plus_the_place_at_the_start() -> None:
    table = StepTable()
    table.apply(update({"a": 1, "b": 2, "c": 3}, run="one"), 0)
    table.apply(update(run="one", final=True), 0)
    assert table.steps_of_next_run("c", "a") is None, "one run is no habit"
    table.apply(update({"a": 1, "b": 2, "c": 3}, run="two"), 0)
    table.apply(update({"b": 0, "c": 1}, run="two", seq=2), 0)
    assert table.steps_of_next_run("c", "a") == 1 + 1
    table.apply(update({"c": 0}, run="two", seq=3), 0)
    assert table.steps_of_next_run("c", "a") == 1
    table.apply(update(run="two", final=True), 0)
    assert table.steps_of_next_run("c", "b") == 2


def test_likelihood_goes_with_its_run() -> None:
    table = StepTable()
    table.apply(update({"a": 1}, likelihood={"a": 0.25, "elsewhere": 1.0}), 0)
    assert table.likelihood("c", "a") == 0.25
    assert table.likelihood("c", "elsewhere") is None
    table.apply(update(final=True), 0)
    assert table.likelihood("c", "a") is None


def test_a_silent_client_is_forgotten_after_its_lease() -> None:
    table = StepTable(StepLimits(lease_s=10))
    table.apply(update({"a": 1}), 0)
    assert table.expire(9) == []
    assert table.expire(11) == ["c"]
    assert table.counts() == {"clients": 0, "runs": 0, "agents": 0, "tombstones": 0}


def test_a_silent_run_of_a_live_client_is_forgotten_after_its_lease() -> None:
    table = StepTable(StepLimits(lease_s=10))
    table.apply(update({"a": 1}, run="silent"), 0)
    table.apply(update({"b": 1}, run="live"), 8)
    assert table.expire(12) == []
    assert table.steps("c", "a") is None
    assert table.steps("c", "b") == 1


def test_every_bound_holds_and_says_so() -> None:
    table = StepTable(StepLimits(clients=1, runs_per_client=1, agents_per_client=2))
    assert table.apply(update({"a": 1, "b": 1}), 0) is Outcome.APPLIED
    assert table.apply(update(client="other"), 0) is Outcome.OVER_CAP
    assert table.apply(update(run="other"), 0) is Outcome.OVER_CAP
    assert table.apply(update({"x": 1}, seq=2), 0) is Outcome.OVER_CAP
    assert table.steps("c", "a") == 1
    assert table.apply(update({"a": 0}, seq=3), 0) is Outcome.APPLIED


def test_tombstones_are_bounded() -> None:
    table = StepTable(StepLimits(tombstones_per_client=3))
    for index in range(10):
        table.apply(update({"a": 1}, run=str(index)), 0)
        table.apply(update(run=str(index), final=True), 0)
    assert table.counts()["tombstones"] == 3


_NAMES = st.sampled_from(["x", "y", "z"])
_UPDATES = st.builds(
    StepUpdate,
    client=_NAMES,
    run=_NAMES,
    seq=st.integers(0, 6),
    steps=st.none() | st.dictionaries(_NAMES, st.integers(0, 5)),
    final=st.booleans(),
)


@given(st.lists(_UPDATES, max_size=40))
def test_the_index_always_agrees_with_a_naive_model(updates: list[StepUpdate]) -> None:
    table = StepTable()
    live: dict[tuple[str, str], tuple[int, dict[str, int]]] = {}
    ended: set[tuple[str, str]] = set()
    for item in updates:
        table.apply(item, 0)
        run = (item.client, item.run)
        if run in ended:
            continue
        if item.final:
            ended.add(run)
            live.pop(run, None)
        elif run not in live or item.seq > live[run][0]:
            kept = live[run][1] if run in live else {}
            live[run] = (item.seq, kept if item.steps is None else item.steps)
        table.check_integrity()
    for client in "xyz":
        for agent in "xyz":
            said = [
                steps[agent]
                for (owner, _), (_, steps) in live.items()
                if owner == client and agent in steps
            ]
            assert table.steps(client, agent) == min(said, default=None)


def test_an_expected_run_gives_its_agents_steps_before_any_has_begun() -> None:
    table = StepTable()
    assert table.expect("c", {"a": 1, "b": 2}, 0) is Outcome.APPLIED
    assert table.steps("c", "b") is None
    assert table.steps_of_next_run("c", "b") == 2
    table.apply(update({"a": 1, "b": 3}), 1)
    assert table.steps("c", "b") == 3


def test_expecting_does_not_replace_what_a_run_has_shown() -> None:
    table = StepTable()
    table.apply(update({"a": 1, "b": 2}, final=False), 0)
    table.apply(update(seq=2, final=True), 0)
    table.expect("c", {"a": 9, "b": 9}, 1)
    assert table.steps_of_next_run("c", "b") == 2


def test_an_expected_run_counts_for_the_bounds_and_the_lease() -> None:
    table = StepTable(StepLimits(clients=1, agents_per_client=2, lease_s=10))
    assert table.expect("c", {"a": 1, "b": 2, "d": 3}, 0) is Outcome.OVER_CAP
    assert table.expect("c", {"a": 1}, 0) is Outcome.APPLIED
    assert table.expect("other", {"a": 1}, 0) is Outcome.OVER_CAP
    assert table.expire(11) == ["c"]
