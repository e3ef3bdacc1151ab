"""What is concluded from measured speeds, and that guesses are never held against."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.policy.estimates import (
    Pace,
    Rate,
    computing_is_quicker,
    copy_is_hidden,
    worth_prefetching,
)


def test_a_rate_is_unknown_until_there_are_enough_samples() -> None:
    rate = Rate(quantile=0.5, least=3)
    for _ in range(2):
        rate.took_at_most(100, 2.0)
    assert rate.value is None
    rate.took_at_most(100, 2.0)
    assert rate.value == 50


def test_one_bad_sample_does_not_move_a_rate() -> None:
    rate = Rate(quantile=0.75)
    for _ in range(15):
        rate.took_at_most(100, 1.0)
    rate.took_at_most(100, 1e-9)
    assert rate.value == 100


def test_a_rate_can_be_made_to_forget_until_it_knows_nothing() -> None:
    rate = Rate(quantile=0, least=2)
    for tokens in (10, 20, 30):
        rate.took_at_most(tokens, 1)
    rate.forget()
    assert rate.value == 20
    rate.forget()
    assert rate.value is None
    rate.forget()
    rate.forget()


def test_a_rate_forgets_what_is_long_past() -> None:
    rate = Rate(quantile=0.5, window=4)
    for seconds in (1, 1, 1, 1, 2, 2, 2, 2):
        rate.took_at_most(100, seconds)
    assert rate.value == 50


def test_samples_without_extent_say_nothing() -> None:
    rate = Rate(quantile=0.5, least=1)
    rate.took_at_most(0, 1.0)
    rate.took_at_most(10, 0.0)
    assert rate.value is None


def test_what_was_too_quick_to_measure_has_no_bound() -> None:
    rate = Rate(quantile=0.75, least=2)
    for seconds in (0.0, 2.0, 2.0):
        rate.took_at_least(100, seconds)
    assert rate.value == math.inf
    assert not computing_is_quicker(1000, 0, rate.value, 1e9)
    assert worth_prefetching(1000, 0, lead=0.0, bus=rate.value, prefill=1e9)


def test_the_lead_grows_with_the_steps_and_is_nothing_for_who_executes() -> None:
    pace = Pace()
    assert pace.lead(0, now=0) == 0
    assert pace.lead(1, now=0) is None
    for now, seconds in ((1.0, 1.0), (3.0, 2.0), (12.0, 9.0)):
        pace.moved(now, seconds)
    assert pace.lead(1, now=12) == 2
    assert pace.lead(3, now=12) == 6


def test_the_lead_passes_with_the_time() -> None:
    pace = Pace()
    pace.moved(now=10.0, seconds=4.0)
    assert pace.lead(1, now=11) == 3
    assert pace.lead(1, now=99) == 0


@pytest.mark.parametrize(
    ("copied", "computed", "bus", "prefill", "quicker"),
    [
        (1000, 0, 500, 10_000, True),
        (1000, 0, 10_000, 500, False),
        (1000, 0, 1000, 1200, False),  # within the margin
        (1000, 0, 1000, 1300, True),
        (1000, 9000, 500, 2000, False),  # the copy hides behind what is computed
        (1000, 0, None, 500, False),
        (1000, 0, 500, None, False),
    ],
)
def test_computing_is_preferred_only_where_it_is_surely_quicker(
    copied: int,
    computed: int,
    bus: float | None,
    prefill: float | None,
    quicker: bool,
) -> None:
    assert computing_is_quicker(copied, computed, bus, prefill) is quicker


_COUNT = st.integers(1, 10_000)
_SPEED = st.floats(1, 1e6)


@given(copied=_COUNT, computed=st.integers(0, 10_000), bus=_SPEED, prefill=_SPEED)
def test_recomputing_never_loses_to_a_copy_hidden_as_well_as_can_be(
    copied: int, computed: int, bus: float, prefill: float
) -> None:
    if computing_is_quicker(copied, computed, bus, prefill):
        stock = max(copied / bus, computed / prefill)
        assert (copied + computed) / prefill < stock


def test_a_late_copy_is_still_a_head_start() -> None:
    assert worth_prefetching(1000, 5000, lead=0.1, bus=1000, prefill=500)


def test_a_late_copy_over_a_slow_bus_is_not_worth_it_and_one_in_time_is() -> None:
    assert not worth_prefetching(1000, 0, lead=1.0, bus=500, prefill=5000)
    assert worth_prefetching(1000, 0, lead=2.0, bus=500, prefill=5000)
    assert not worth_prefetching(1000, 1, lead=2.0, bus=500, prefill=5000), "queued"


@pytest.mark.parametrize("unknown", ["lead", "bus", "prefill"])
def test_what_was_not_measured_is_not_held_against_a_copy(unknown: str) -> None:
    known: dict[str, float | None] = {"lead": 0.0, "bus": 1.0, "prefill": 1e6}
    assert worth_prefetching(1000, 0, **{**known, unknown: None})


_KNOWN = st.none() | _SPEED


@given(
    copied=_COUNT,
    computed=st.integers(0, 10_000),
    bus=_SPEED,
    prefill=_KNOWN,
    passes=_KNOWN,
)
def test_a_copy_is_hidden_or_waited_for(
    copied: int,
    computed: int,
    bus: float,
    prefill: float | None,
    passes: float | None,
) -> None:
    hidden = copy_is_hidden(copied, computed, bus, prefill, passes)
    behind = [computed / prefill] if prefill else []
    behind += [1 / passes] if passes else []
    assert hidden is any(copied / bus <= seconds for seconds in behind)


@given(copied=_COUNT, computed=st.integers(0, 10_000), bus=_SPEED, prefill=_SPEED)
def test_no_copy_is_hidden_where_computing_is_quicker(
    copied: int, computed: int, bus: float, prefill: float
) -> None:
    hidden = copy_is_hidden(copied, computed, bus, prefill)
    assert not (hidden and computing_is_quicker(copied, computed, bus, prefill))


@pytest.mark.parametrize(("bus", "prefill"), [(None, 1.0), (1.0, None), (None, None)])
def test_what_was_not_measured_hides_nothing(
    bus: float | None, prefill: float | None
) -> None:
    assert not copy_is_hidden(1, 1000, bus, prefill)
    assert not copy_is_hidden(1, 1000, None, prefill, 1.0)
