"""What is evicted first, class by class, as DESIGN.md lists it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.priority import (
    EvictionClass,
    Order,
    Owner,
    Use,
    eviction_key,
    nearness,
)
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
        eviction_key(table, [], Owner("c", "live", "later"), 9.0, use=Use.SHARED),
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


def _likely(a: float | None, b: float | None, *, steps: int = 1) -> StepTable:
    """Agents a and b, equally far, that likely; c one step farther, for certain."""
    known = {"a": a, "b": b, "c": 1.0}
    likelihood = {agent: value for agent, value in known.items() if value is not None}
    table = StepTable()
    update = StepUpdate(
        client="c",
        run="live",
        seq=1,
        steps={"a": steps, "b": steps, "c": steps + 1},
        likelihood=likelihood,
    )
    table.apply(update, 0)
    return table


def test_among_equal_steps_the_less_likely_goes_first_whatever_its_recency() -> None:
    table = _likely(0.9, 0.1)
    a, b, c = (
        eviction_key(table, [("c", n)], None, t)
        for n, t in zip("abc", (1, 9, 9), strict=True)
    )
    assert c < b < a, "a step outweighs any likelihood"


def test_likelihoods_that_hardly_differ_leave_it_to_recency() -> None:
    table = _likely(0.80, 0.81)
    assert eviction_key(table, [("c", "a")], None, 5.0) > eviction_key(
        table, [("c", "b")], None, 4.0
    )


def test_an_unknown_likelihood_counts_as_certain() -> None:
    table = _likely(None, 0.99)
    certain, likely = (eviction_key(table, [("c", n)], None, 0.0) for n in "ab")
    assert certain == likely


def test_the_papers_order_knows_no_likelihood() -> None:
    table = _likely(0.9, 0.1)
    a, b = (eviction_key(table, [("c", n)], None, 0.0, order=Order.STEPS) for n in "ab")
    assert a == b


@given(st.integers(0, 300), st.floats(0, 1), st.floats(0, 1))
def test_no_likelihood_outweighs_a_step(steps: int, near: float, far: float) -> None:
    assert nearness(steps + 1, 1 - far) < nearness(steps, 1 - near)
    assert nearness(steps) == -steps


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


def test_what_several_have_used_outlives_the_run_that_used_it_last() -> None:
    table = table_with({"a": 1})
    ended = Owner("c", "gone", "a")
    assert eviction_key(table, [], ended, 0.0).group is EvictionClass.ENDED_SUFFIX
    shared = eviction_key(table, [], ended, 0.0, use=Use.SHARED)
    assert shared.group is EvictionClass.SHARED


def test_a_tagged_run_does_not_demote_what_untagged_traffic_wrote() -> None:
    table = table_with({"a": 1})
    key = eviction_key(table, [], Owner("c", "gone", "a"), 0.0, use=Use.FOREIGN)
    assert key == eviction_key(table, [], None, 0.0)


def test_the_classes_alone_know_no_steps() -> None:
    table = table_with({"near": 0, "far": 9})
    keys = {
        eviction_key(table, [("c", agent)], None, 5.0, order=Order.CLASSES)
        for agent in ("near", "far", "never mentioned")
    }
    assert len(keys) == 1
    (fixed,) = keys
    order = Order.CLASSES
    suffix = eviction_key(table, [], Owner("c", "live", "near"), 9.0, order=order)
    assert suffix.group is EvictionClass.SUFFIX, "executing is a step"
    assert suffix < eviction_key(table, [], None, 1.0, order=order) < fixed
    gone = eviction_key(table, [("elsewhere", "near")], None, 5.0, order=order)
    assert gone.group is EvictionClass.UNKNOWN


def test_the_paper_s_policy_orders_what_is_reached_and_nothing_else() -> None:
    table = table_with({"near": 1, "far": 9})
    order = Order.STEPS
    plain = [
        eviction_key(table, [], None, 5.0, order=order),
        eviction_key(table, [], Owner("c", "gone", "far"), 5.0, order=order),
        eviction_key(table, [], Owner("c", "live", "near"), 5.0, order=order),
        eviction_key(table, [("c", "not reached")], None, 5.0, order=order),
    ]
    assert len(set(plain)) == 1
    far = eviction_key(table, [("c", "far")], None, 1.0, order=order)
    near = eviction_key(table, [("c", "near")], None, 0.0, order=order)
    assert plain[0] < far < near


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "now", "gone"]), st.sampled_from(list(Use))),
        min_size=2,
        max_size=8,
    )
)
def test_recency_looks_at_nothing_else(nodes: list[tuple[str | None, Use]]) -> None:
    table = table_with({"now": 0})
    keys = [
        eviction_key(
            table,
            [] if agent is None else [("c", agent)],
            None if agent is None else Owner("c", "live", agent),
            float(time),
            order=Order.RECENCY,
            use=use,
        )
        for time, (agent, use) in enumerate(nodes)
    ]
    assert keys == sorted(keys)
