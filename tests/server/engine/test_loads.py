"""Copies in flight: nobody reads early, everything ends, the planner keeps its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvflow_server.engine.config import Mode

Make = Callable[..., Any]
A, B, C = (list(range(base, base + 48)) for base in (1000, 2000, 3000))
CLIENT = "client-0123456789abcdef"


@pytest.fixture
def evicted(make_harness: Make) -> Any:
    """Three prompts of three pieces each, all of them only in host memory."""
    harness = make_harness(pool=128, piece=16)
    for agent, tokens in (("a", A), ("b", B), ("c", C)):
        harness.insert(tokens, harness.tag(agent, 48, tokens))
        harness.backup()
    harness.evict(1000)
    return harness


def throttle(harness: Any) -> None:
    """As after prefetches that nobody used."""
    accounts = harness.cache.prefetcher.accounts
    for _ in range(32):
        accounts.issued(CLIENT, "b", 16)
        accounts.settled(CLIENT, "b", 16, used=False)


def states(harness: Any, tokens: list[int]) -> list[str]:
    from kvflow_server.engine.states import kv_state

    walk = harness.cache.tree_core.walk(harness.key(tokens))
    return [kv_state(node).value for node in walk]


def test_the_next_agent_comes_back_piece_by_piece(evicted: Any) -> None:
    evicted.update({"a": 0, "b": 1, "c": 2})
    evicted.prefetch(busy={(CLIENT, "a")})
    assert states(evicted, B) == ["loading", "loading", "backed_up"]
    assert states(evicted, C) == ["backed_up"] * 3
    evicted.finish_loads()
    evicted.prefetch(busy={(CLIENT, "a")})
    evicted.finish_loads()
    assert states(evicted, B) == ["in_gpu"] * 3
    assert evicted.cache.counters.prefetch_tokens == 48
    evicted.check()


def test_loaded_kv_is_bit_for_bit_what_was_backed_up(make_harness: Make) -> None:
    import torch

    harness = make_harness(pool=128, piece=16)
    harness.insert(A, harness.tag("a", 48, A))
    pool = harness.allocator.get_kvcache()
    slots = harness.cache.path_device_indices(harness.match(A).last_device_node)
    wanted = torch.randn_like(pool.get_key_buffer(1)[slots])
    # Written before the copy to host memory is submitted.
    pool.get_key_buffer(1)[slots] = wanted
    harness.backup()
    harness.evict(1000)
    pool.get_key_buffer(1).fill_(-1)
    harness.update({"a": 0})
    for _ in range(3):
        harness.prefetch()
        harness.finish_loads()
    slots = harness.cache.path_device_indices(harness.match(A).last_device_node)
    assert torch.equal(pool.get_key_buffer(1)[slots], wanted)


def test_a_split_of_a_loading_node_leaves_both_halves_loading(evicted: Any) -> None:
    evicted.update({"b": 0})
    evicted.prefetch()
    evicted.match([*B[:5], 7])
    assert states(evicted, B)[:3] == ["loading"] * 3
    evicted.check()
    evicted.finish_loads()
    assert "loading" not in states(evicted, B)
    evicted.check()


def test_joining_waits_for_the_newest_copy_and_ends_loading(evicted: Any) -> None:
    evicted.update({"b": 1})
    evicted.prefetch()
    loads = evicted.cache.loads
    path = list(evicted.cache.tree_core.walk(evicted.key(B)))
    operations = loads.on_path(path)
    assert len(operations) == 2
    loads.join(operations[:1])
    loads.join(operations)
    assert evicted.cache.ready_to_load_host_cache() == operations[1].producer
    assert not loads.active
    assert evicted.cache.ready_to_load_host_cache() == -1, "joined once"
    evicted.finish_loads()
    evicted.check()


def test_joining_an_older_copy_leaves_the_newer_one_loading(evicted: Any) -> None:
    evicted.update({"b": 1})
    evicted.prefetch()
    path = list(evicted.cache.tree_core.walk(evicted.key(B)))
    first, second = evicted.cache.loads.on_path(path)
    evicted.cache.loads.join([first])
    assert evicted.cache.ready_to_load_host_cache() == first.producer
    assert evicted.cache.loads.on_path(path) == [second]


def test_a_prefetch_displaces_only_what_goes_before_it(make_harness: Make) -> None:
    harness = make_harness(pool=100, piece=16)
    for agent, tokens in (("a", A), ("b", B), ("c", C)):
        harness.insert(tokens, harness.tag(agent, 48, tokens))
        harness.backup()
    # a was displaced by c; b and c are on the device.
    harness.update({"a": 1, "b": 0, "c": 1})
    harness.prefetch(busy={(CLIENT, "b")})
    assert harness.device_tokens(C) == 48, "as near as a: it stays"
    assert harness.cache.counters.prefetch_refused
    harness.update({"a": 1, "b": 0, "c": 2})
    for _ in range(3):
        harness.prefetch(busy={(CLIENT, "b")})
        harness.finish_loads()
    assert harness.device_tokens(A) == 48
    assert harness.device_tokens(B) == 48
    assert harness.device_tokens(C) == 0
    harness.check()


def test_the_reserve_of_running_requests_is_left_alone(evicted: Any) -> None:
    evicted.update({"b": 0})
    evicted.cache.prefetcher.run(set, reserve=lambda: 120, computing=True)
    assert not evicted.cache.loads.active
    assert evicted.cache.counters.prefetch_refused == 1


def test_a_skipped_request_s_load_starts_before_any_prefetch(evicted: Any) -> None:
    evicted.update({"b": 0})
    node = evicted.match(C).best_match_node
    evicted.cache.loads.demand["rid"] = (node, None)
    evicted.prefetch()
    assert states(evicted, C) == ["loading"] * 3
    assert evicted.cache.counters.load_on_demand_tokens == 48
    evicted.finish_loads()
    evicted.check()


def test_the_first_agent_comes_back_before_the_next_run_starts(evicted: Any) -> None:
    for run in ("one", "two"):
        evicted.update({"a": 1, "b": 2, "c": 3}, run=run)
        evicted.update({"c": 0}, run=run)
    evicted.update(final=True, run="one")
    evicted.prefetch(busy={(CLIENT, "c")})
    assert "loading" in states(evicted, A)
    evicted.finish_loads()


def test_without_prefetch_nothing_is_copied_ahead(make_harness: Make) -> None:
    harness = make_harness(mode=Mode.EVICT)
    harness.insert(A, harness.tag("a", 48, A))
    harness.backup()
    harness.evict(1000)
    harness.update({"a": 0})
    harness.prefetch()
    assert not harness.cache.loads.active


def test_unused_prefetches_are_counted_and_used_ones_too(evicted: Any) -> None:
    evicted.update({"b": 0})
    for _ in range(3):
        evicted.prefetch()
        evicted.finish_loads()
    path = list(evicted.cache.tree_core.walk(evicted.key(B)))
    evicted.cache.prefetcher.note_use(path[:1])
    assert evicted.cache.counters.prefetch_used_tokens == 16
    evicted.evict(1000)
    assert evicted.cache.counters.prefetch_unused_tokens == 32
    usage = evicted.cache.prefetcher.accounts.of(CLIENT)["b"]
    assert (usage.issued, usage.used, usage.unused) == (48, 16, 32)


def test_a_throttled_client_earns_its_credit_back_by_its_misses(evicted: Any) -> None:
    throttle(evicted)
    evicted.update({"b": 0})
    evicted.prefetch()
    assert not evicted.cache.loads.active, "throttled"
    for _ in range(16):
        node = evicted.match(B).best_match_node
        evicted.cache.loads.demand["rid"] = (node, (CLIENT, "b"))
        evicted.prefetch()
        evicted.finish_loads()
        evicted.evict(1000)
        # What it loads meanwhile for others says nothing of the planner's forecasts.
        evicted.cache.prefetcher.accounts.missed(CLIENT, "c")
        evicted.prefetch()
    assert "loading" in states(evicted, B)
    evicted.finish_loads()


def test_more_copies_than_event_slots_are_refused_not_asserted(evicted: Any) -> None:
    loads = evicted.cache.loads
    started = 0
    for tokens in (A, B, C):
        for node in list(evicted.cache.tree_core.walk(evicted.key(tokens))):
            missing = evicted.cache.missing_on_device(node)
            started += bool(missing) and loads.start(missing) is not None
            if started > 6:
                break
    counter = evicted.cache.cache_controller.layer_done_counter
    assert started == counter.num_counters - 3
    evicted.finish_loads()
    evicted.check()


def test_a_copy_never_merges_with_one_that_the_scheduler_queued(evicted: Any) -> None:
    cache = evicted.cache
    assert cache.load_back(evicted.match(A).best_match_node)
    (node, *_) = cache.tree_core.walk(evicted.key(B))
    assert cache.loads.start([node]) is None, "its batch would no longer wait for it"
    assert cache.ready_to_load_host_cache() >= 0
    assert cache.loads.start([node]) is not None
    evicted.finish_loads()
    evicted.check()
