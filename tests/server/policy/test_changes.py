"""The feed of changes leaves nothing out: who follows it need not look at the rest."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.steps import Changes, StepLimits, StepTable

_NAMES = ("x", "y", "z")
_names = st.sampled_from(_NAMES)
_updates = st.builds(
    StepUpdate,
    client=_names,
    run=_names,
    seq=st.integers(0, 6),
    steps=st.none() | st.dictionaries(_names, st.integers(0, 3)),
    likelihood=st.none() | st.dictionaries(_names, st.sampled_from([0.1, 0.5, 1.0])),
    final=st.booleans(),
)


def answers(table: StepTable) -> dict[tuple[str, ...], Any]:
    """Everything the table says, keyed by what a feed would call it."""
    said: dict[tuple[str, ...], Any] = {}
    for client in _NAMES:
        said["client", client] = table.knows(client)
        for other in _NAMES:
            said["run", client, other] = table.run_is_live(client, other)
            steps = table.steps(client, other)
            again = table.steps_of_next_run(client, other) if steps is None else None
            likelihood = table.likelihood(client, other)
            said["agent", client, other] = (steps, again, likelihood)
    for names in product(_NAMES, repeat=3):
        said["call", *names] = table.is_executing(*names)
    return said


def named(feed: Changes) -> set[tuple[str, ...]]:
    return {
        *(("client", name) for name in feed.clients),
        *(("run", *names) for names in feed.runs),
        *(("agent", *names) for names in feed.agents),
        *(("call", *names) for names in feed.calls),
    }


@given(st.lists(_updates | st.sampled_from([4.0, 11.0]), max_size=30))
def test_whatever_answers_differently_is_named(
    steps: list[StepUpdate | float],
) -> None:
    table = StepTable(StepLimits(lease_s=5))
    feed, now = table.watch(), 0.0
    before = answers(table)
    for step in steps:
        if isinstance(step, float):
            now += step
            table.expire(now)
        else:
            table.apply(step, now)
        after = answers(table)
        assert {key for key in after if after[key] != before[key]} <= named(feed)
        table.check_integrity()
        feed.clear()
        before = after


def test_with_its_client_an_agent_of_the_next_run_is_forgotten() -> None:
    table = StepTable(StepLimits(lease_s=5))
    for run in ("one", "two"):
        table.apply(StepUpdate(client="c", run=run, seq=1, steps={"a": 1}), 0)
        table.apply(StepUpdate(client="c", run=run, seq=2, final=True), 0)
    assert table.steps_of_next_run("c", "a") == 1
    feed = table.watch()
    table.expire(6)
    assert table.steps_of_next_run("c", "a") is None
    assert list(feed.agents) == [("c", "a")]


def test_what_stayed_as_it_was_is_not_named() -> None:
    table = StepTable()
    table.apply(
        StepUpdate(client="c", run="r", seq=1, steps={"a": 1, "b": 5, "c": 9}), 0
    )
    feed = table.watch()
    table.apply(
        StepUpdate(client="c", run="r", seq=2, steps={"a": 0, "b": 5, "c": 9}), 0
    )
    assert list(feed.agents) == [("c", "a")]
    assert list(feed.calls) == [("c", "r", "a")]
    assert not feed.runs
    assert not feed.clients


def test_each_reader_has_a_feed_of_its_own() -> None:
    table = StepTable()
    one, other = table.watch(), table.watch()
    table.apply(StepUpdate(client="c", run="r", seq=1, steps={"a": 1}), 0)
    one.clear()
    assert not one
    assert list(other.agents) == [("c", "a")]
    assert list(other.clients) == ["c"]
