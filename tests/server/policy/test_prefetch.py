"""Which agents are fetched for, in which order, and for whom no longer."""

from __future__ import annotations

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.prefetch import Credit, PrefetchLimits, rank_candidates
from kvflow_server.policy.steps import StepTable

LIMITS = PrefetchLimits(horizon=1, credit_window=4)


def table_with(**fields: object) -> StepTable:
    table = StepTable()
    table.apply(StepUpdate(client="c", run="r", seq=1, **fields), 0)  # type: ignore[arg-type]
    return table


def names(table: StepTable, *agents: str) -> list[str]:
    owners = [("c", agent) for agent in agents]
    return [choice.agent for choice in rank_candidates(table, owners, LIMITS)]


def test_only_what_is_within_the_horizon_nearest_first() -> None:
    table = table_with(steps={"far": 2, "next": 1, "now": 0})
    assert names(table, "far", "next", "now", "unheard") == ["now", "next"]


def test_among_equally_near_the_likeliest_first_and_unknown_counts_as_sure() -> None:
    table = table_with(
        steps={"rare": 1, "usual": 1, "unknown": 1},
        likelihood={"rare": 0.1, "usual": 0.9},
    )
    assert names(table, "rare", "usual", "unknown") == ["unknown", "usual", "rare"]


def test_a_run_still_to_come_is_served_after_every_live_one() -> None:
    table = StepTable()
    for run, steps in [("one", {"a": 1, "z": 2}), ("two", {"a": 1, "z": 2})]:
        table.apply(StepUpdate(client="c", run=run, seq=1, steps=steps), 0)
    table.apply(StepUpdate(client="c", run="one", seq=2, final=True), 0)
    table.apply(StepUpdate(client="c", run="two", seq=2, steps={"z": 0}), 0)
    assert names(table, "a", "z") == ["z", "a"]


def test_credit_stops_a_client_whose_prefetches_go_unused() -> None:
    credit = Credit()
    for _ in range(3):
        credit.record(False, LIMITS)
    assert credit.allows(LIMITS), "too little evidence"
    credit.record(False, LIMITS)
    assert not credit.allows(LIMITS)
    credit.record(True, LIMITS)
    credit.record(True, LIMITS)
    assert credit.allows(LIMITS)
