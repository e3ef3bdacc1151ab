"""The account of KVFlow's own time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.engine.overhead import Overhead, quantile


class Clock:
    """Nanoseconds that pass only when told."""

    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def test_pieces_of_a_pass_add_up_and_nested_ones_count_once(clock: Clock) -> None:
    overhead = Overhead(clock)
    with overhead:
        clock.now += 3_000
        with overhead:
            clock.now += 1_000
    clock.now += 50_000
    with overhead:
        clock.now += 2_000
    overhead.end_pass(busy=True)
    assert overhead.max_ns == 6_000


def test_idle_passes_are_not_counted_and_do_not_spill_over(clock: Clock) -> None:
    overhead = Overhead(clock)
    with overhead:
        clock.now += 9_000
    overhead.end_pass(busy=False)
    overhead.end_pass(busy=True)
    report = overhead.as_dict()
    assert (report["passes"], report["max_us"]) == (1, 0)


def test_time_is_counted_when_the_code_raises(clock: Clock) -> None:
    overhead = Overhead(clock)

    def fail() -> None:
        with overhead:
            clock.now += 4_000
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    overhead.end_pass(busy=True)
    assert overhead.max_ns == 4_000


@given(
    st.lists(st.integers(0, 10**10), min_size=1), st.sampled_from((0.01, 0.5, 0.99, 1))
)
def test_a_quantile_is_at_most_a_quarter_too_large(
    times: list[int], share: float
) -> None:
    clock = Clock()
    overhead = Overhead(clock)
    for time in times:
        with overhead:
            clock.now += time
        overhead.end_pass(busy=True)
    exact = next(
        value
        for rank, value in enumerate(sorted(times), start=1)
        if rank >= share * len(times)
    )
    assert exact <= quantile(overhead._buckets, share) <= exact * 1.25


def test_of_nothing_every_quantile_is_zero() -> None:
    assert quantile({}, 0.99) == 0
