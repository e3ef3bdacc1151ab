"""All ranks go by the time that the first one sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvflow_server.engine.clock import RankClock

if TYPE_CHECKING:
    from conftest import Harness


def test_time_stands_still_between_ticks_and_never_goes_back() -> None:
    clock = RankClock()
    assert clock.now == 0
    for sent, now in [(5.0, 5.0), (4.0, 5.0), (6.5, 6.5)]:
        clock.advance(sent)
        assert clock.now == now


def test_an_idle_scheduler_is_told_the_time_less_often() -> None:
    clock = RankClock()
    assert clock.due(100.0, busy=False)
    assert not clock.due(100.002, busy=False)
    assert clock.due(100.002, busy=True)
    assert not clock.due(100.0025, busy=True)
    assert clock.due(100.02, busy=False)


def test_the_first_rank_sends_a_tick_and_every_rank_takes_it_before_the_requests(
    make_harness: Any,
) -> None:
    from kvflow_server.engine.handlers import append_tick, take_ticks

    first, other = (scheduler_of(make_harness()) for _ in range(2))
    received: list[Any] = ["a request"]
    append_tick(received, first)
    assert len(received) == 2
    for rank in (first, other):
        requests = list(received)
        take_ticks(rank, requests)
        assert requests == ["a request"]
    assert first.tree_cache.clock.now == other.tree_cache.clock.now > 0


def test_a_lease_counts_from_the_tick_that_came_with_the_update(
    make_harness: Any,
) -> None:
    # The scheduler had slept for longer than a lease when the update arrived.
    harness: Harness = make_harness()
    cache = harness.cache
    cache.clock.advance(1e6)
    harness.update({"planner": 0})
    cache.expire_when_due()
    assert cache.table.counts()["clients"] == 1
    cache.clock.advance(1e6 + 2 * cache.config.steps.lease_s)
    cache.expire_when_due()
    assert cache.table.counts()["clients"] == 0


def scheduler_of(harness: Harness) -> Any:
    return SimpleNamespace(
        tree_cache=harness.cache,
        waiting_queue=[],
        running_batch=SimpleNamespace(reqs=[]),
        _engine_paused=False,
    )
