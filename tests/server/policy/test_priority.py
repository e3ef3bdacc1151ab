"""What is evicted first, class by class, as DESIGN.md lists it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.priority import EvictionClass, Owner, eviction_key
from kvflow_server.policy.steps import StepLimits, StepTable


def table_with(steps: dict[str, int]) -> StepTable:
    table = StepTable(StepLimits(lease_s=10))
    table.apply(StepUpdate(client="c", run="live", seq=1, steps=steps), 0)
    return table


def test_the_classes_stand_in_the_order_of_the_design() -> None:
    table = table_with({"now": 0, "next": 1, "later": 5, "idle": 3})
    table.apply(
        StepUpdate(
            client="c", run="live", seq=2, steps={"now": 0, "next": 1, "later": 5}
        ),
        0,
    )
    keys = [
        eviction_key(table, [], Owner("c", "gone", "x"), 9.0),
        eviction_key(table, [], Owner("c", "live", "later"), 9.0),
        eviction_key(table, [], None, 9.0),
        eviction_key(table, [], Owner("c", "live", "now"), 9.0),
        eviction_key(table, [("c", "idle")], None, 9.0),
        eviction_key(table, [("c", "later")], None, 9.0),
        eviction_key(table, [("c", "next")], None, 9.0),
        eviction_key(table, [("c", "now")], None, 9.0),
    ]
    assert keys == sorted(keys)
    assert len({key[:2] for key in keys}) == len(keys)


def test_a_shared_prefix_is_as_near_as_the_nearest_agent_below_it() -> None:
    table = table_with({"near": 1, "far": 7})
    shared = eviction_key(table, [("c", "far"), ("c", "near")], None, 0.0)
    assert shared == eviction_key(table, [("c", "near")], None, 0.0)


def test_after_its_lease_a_prompt_is_an_ordinary_entry() -> None:
    table = table_with({"a": 1})
    table.expire(100)
    assert eviction_key(table, [("c", "a")], None, 4.0).group is EvictionClass.UNKNOWN


def test_retained_prompts_go_farthest_from_the_next_run_first() -> None:
    table = StepTable()
    for run in ("one", "two"):
        first = {"a": 1, "b": 2, "z": 3}
        table.apply(StepUpdate(client="c", run=run, seq=1, steps=first), 0)
        table.apply(StepUpdate(client="c", run=run, seq=2, steps={"z": 0}), 0)
    a = eviction_key(table, [("c", "a")], None, 0.0)
    b = eviction_key(table, [("c", "b")], None, 9.0)
    assert a.group is b.group is EvictionClass.RETAINED
    assert b < a, "recency does not outweigh the distance"


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=8))
def test_without_metadata_the_order_is_exactly_recency(times: list[float]) -> None:
    table = StepTable()
    keys = [eviction_key(table, [], None, time) for time in times]
    by_key = sorted(range(len(times)), key=lambda i: (keys[i], i))
    assert by_key == sorted(range(len(times)), key=lambda i: (times[i], i))
