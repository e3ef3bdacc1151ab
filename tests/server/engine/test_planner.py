"""The planner on the real cache: budget, ceiling, order, cancelling, measured speeds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

Make = Callable[..., Any]
A, B, C, D = (list(range(base, base + 48)) for base in (1000, 2000, 3000, 4000))
CLIENT = "client-0123456789abcdef"


class Clock:
    """The time that decisions are made by, set by hand."""

    now = 0.0


def filled(make_harness: Make, prompts: dict[str, list[int]], **options: Any) -> Any:
    """These agents' prompts, all of them only in host memory."""
    harness = make_harness(**{"pool": 128, "piece": 16, **options})
    harness.cache.clock = Clock()
    for agent, tokens in prompts.items():
        harness.insert(tokens, harness.tag(agent, 48, tokens))
        harness.backup()
    harness.evict(1000)
    return harness


def resident(harness: Any) -> dict[str, int]:
    prompts = {"a": A, "b": B, "c": C, "d": D}
    return {name: harness.device_tokens(t) for name, t in prompts.items()}


def settle(harness: Any, passes: int = 12) -> None:
    for _ in range(passes):
        harness.prefetch()
        harness.finish_loads()


def test_a_prefetch_that_does_not_fit_evicts_nothing(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A, "b": B}, pool=60)
    # 40 tokens of some agent's suffix, and 12 of a nearer prompt: together too much.
    near = list(range(5000, 5036))
    harness.insert(near, harness.tag("near", 36, near))
    suffix = [*near, *range(8)]
    harness.insert(suffix, harness.tag("near", 36, near, run="over"))
    harness.backup()
    harness.update({"near": 0, "a": 1})
    harness.evict(0)
    free = harness.allocator.available_size()
    assert free < 16 + 8
    while harness.allocator.available_size() > 4:
        harness.allocator.alloc(1)
    harness.prefetch()
    assert harness.device_tokens(suffix) == 44, "8 of the 12 missing were of no use"
    assert harness.cache.counters.prefetch_refused == 1


def test_while_the_bus_is_idle_the_agent_after_next_comes_back_too(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {"b": B, "c": C}, idle_horizon=2)
    harness.update({"a": 0, "b": 1, "c": 2})
    harness.prefetch()
    harness.finish_loads()
    assert resident(harness)["b"] == 32
    assert resident(harness)["c"] == 0, "the bus was taken"
    settle(harness)
    assert resident(harness)["b"] == 48
    assert resident(harness)["c"] == 48
    harness.check()


def test_one_piece_at_a_time_for_who_is_far(make_harness: Make) -> None:
    harness = filled(make_harness, {"c": C}, idle_horizon=2)
    harness.update({"a": 0, "b": 1, "c": 2})
    harness.prefetch()
    harness.prefetch()
    assert harness.cache.loads.queued == 1
    harness.finish_loads()


def test_right_after_answers_only_who_is_near_is_fetched_for(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {"b": B, "c": C}, idle_horizon=2)
    clock = harness.cache.clock
    clock.now = 100.0
    harness.update({"a": 0})
    harness.prefetch()  # which computes
    harness.update({"a": 0, "b": 1, "c": 2})
    lull = harness.cache.config.prefetch.lull_s
    for at in (100.0, 100.0 + lull / 2, 100.0 + lull * 0.99):
        clock.now = at
        harness.prefetch(computing=False)
        harness.finish_loads()
    assert resident(harness)["b"] == 48
    assert resident(harness)["c"] == 0, "calls are about to come"
    clock.now = 100.0 + lull
    harness.prefetch(computing=False)
    harness.finish_loads()
    assert resident(harness)["c"] > 0
    harness.check()


def test_a_run_that_turns_elsewhere_gets_no_further_piece(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A, "b": B})
    harness.update({"z": 0, "a": 1})
    harness.prefetch()
    harness.finish_loads()
    harness.update({"z": 0, "b": 1})
    settle(harness)
    assert resident(harness)["a"] == 32, "two pieces were on the bus already"
    assert resident(harness)["b"] == 48


def test_a_run_that_ends_gets_no_further_piece(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A})
    harness.update({"z": 0, "a": 1})
    harness.prefetch()
    harness.update(final=True)
    settle(harness)
    assert resident(harness)["a"] == 32


def test_who_executes_gets_all_of_its_prompt_in_one_copy(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A, "b": B})
    harness.update({"a": 0, "b": 1})
    harness.prefetch()
    first, second = harness.cache.loads._operations
    assert (first.tokens, second.tokens) == (48, 16)
    harness.finish_loads()
    harness.check()


def test_and_in_pieces_what_there_is_room_for(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A}, pool=60)
    held = harness.allocator.alloc(20)
    harness.update({"a": 0})
    settle(harness)
    assert resident(harness)["a"] == 32
    harness.allocator.free(held)
    settle(harness)
    assert resident(harness)["a"] == 48


def test_a_load_on_demand_that_finds_no_place_lets_no_prefetch_pass(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {"a": A, "b": B}, pool=60)
    harness.update({"b": 0})
    held = harness.allocator.alloc(30)
    node = harness.match(A).best_match_node
    harness.cache.loads.demand["rid"] = (node, None)
    harness.prefetch()
    assert not harness.cache.loads.active
    harness.allocator.free(held)
    harness.cache.loads.demand["rid"] = (node, None)
    harness.prefetch()
    harness.finish_loads()
    assert resident(harness)["a"] == 48


def test_planning_looks_at_nobody_whose_prompt_is_there(
    make_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_harness(pool=256, piece=16)
    for agent, tokens in (("a", A), ("b", B), ("c", C)):
        harness.insert(tokens, harness.tag(agent, 48, tokens))
        harness.backup()
    looked: list[str] = []
    prompts = harness.cache.prompts
    handles = prompts.handles
    monkeypatch.setattr(
        prompts, "handles", lambda c, agent: looked.append(agent) or handles(c, agent)
    )
    harness.update({"a": 0, "b": 1, "c": 1})
    settle(harness)
    assert looked == []
    harness.evict(48)
    settle(harness)
    assert set(looked) == {"b"}, "who was evicted, and only it"


def test_the_speed_of_the_bus_is_measured_from_copies_that_arrived(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {"a": A, "b": B, "c": C}, pool=256)
    clock = harness.cache.clock
    harness.update({"z": 0, "a": 1, "b": 1, "c": 1})
    for _ in range(6):
        harness.prefetch()
        clock.now += 2.0
        harness.cache.loading_check(finish_count=0)
        clock.now += 0.5  # arrived some time before this pass
        harness.finish_loads()
    # Of "two pieces in two seconds" and "one in two seconds" the lower speaks.
    assert harness.cache.speeds.bus.value == 16 / 2.0
    assert harness.cache.counters.h2d_tokens == 3 * 48
    assert harness.cache.counters.h2d_bytes == 3 * 48 * 2 * 2 * 8 * 4


def prefilled(harness: Any, tokens: int, seconds: float) -> None:
    """The scheduler has run a prefill batch of `tokens` that took so long."""
    mode = SimpleNamespace(is_extend=lambda: True)
    req = SimpleNamespace(output_ids=[], finished=lambda: False)
    batch = SimpleNamespace(
        forward_mode=mode,
        reqs=[req],
        extend_num_tokens=tokens,
        hicache_consumer_index=-1,
        chunked_req=None,
    )
    harness.cache.speeds.pass_ended(batch)
    harness.cache.clock.now += seconds
    req.output_ids.append(1)
    harness.cache.speeds.pass_ended(None)


def test_few_tokens_tell_what_a_pass_takes_and_many_how_fast_it_computes(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {})
    for seconds in (0.3, 0.1, 0.5, 0.1, 0.4):
        prefilled(harness, 8, seconds)
    said = harness.cache.speeds.as_dict()
    assert said["light_pass_s"] == pytest.approx(0.1)
    assert said["prefill_tokens_per_s"] is None
    for _ in range(4):
        prefilled(harness, 1000, 0.5)
    assert harness.cache.speeds.as_dict()["prefill_tokens_per_s"] == 2000


def slow_bus(harness: Any) -> None:
    """Measured: the bus 10 tokens a second, prefill 1000, a step 2 seconds."""
    harness.update({"z": 0, "y": 1})
    harness.prefetch()
    harness.cache.clock.now += 2.0
    harness.update({"y": 0})
    harness.prefetch()
    for _ in range(8):
        harness.cache.speeds.bus.took_at_least(10, 1.0)
        harness.cache.speeds.prefill.took_at_most(1000, 1.0)


def test_what_would_come_too_late_is_left_to_be_computed(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A})
    slow_bus(harness)
    harness.update({"y": 0, "a": 1})
    harness.prefetch()
    assert harness.cache.loads.queued == 1, "a second one would take 3.2 seconds"
    harness.finish_loads()
    harness.cache.clock.now += 1.0
    settle(harness)
    assert resident(harness)["a"] == 16
    assert harness.cache.counters.prefetch_too_late > 0


def test_the_last_piece_of_a_prompt_in_time_is_fetched(make_harness: Make) -> None:
    harness = filled(make_harness, {"a": A})
    slow_bus(harness)
    for _ in range(8):
        harness.cache.speeds.bus.took_at_least(100, 1.0)
    harness.update({"y": 0, "a": 1})
    settle(harness)
    assert resident(harness)["a"] == 48


def test_nothing_is_kept_of_prompts_runs_and_clients_that_are_gone(
    make_harness: Make,
) -> None:
    harness = filled(make_harness, {"a": A, "b": B})
    harness.update({"a": 0, "b": 1})
    settle(harness)
    harness.cache.clock.now += 1.0
    harness.update({"b": 0})
    harness.prefetch()
    # Agent c is far away, and its client is over a cap and unknown to the table.
    harness.insert(C, harness.tag("c", 48, C, client="unknown-0123456789abcdef"))
    harness.backup()
    harness.evict(1000)
    prefetcher = harness.cache.prefetcher
    assert set(prefetcher.candidates.missing()) >= {("unknown-0123456789abcdef", "c")}
    harness.cache.evict_host(1000)
    assert list(prefetcher.candidates.missing()) == []
    harness.check()
    harness.cache.clock.now += 1e6
    harness.cache.expire_when_due()
    harness.prefetch()
    harness.check()
    assert len(prefetcher.accounts) == 0
    assert not prefetcher._pace
    assert not prefetcher._moved


_STEPS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)


@given(before=_STEPS, steps=_STEPS, reserve=st.integers(0, 80), hold=st.integers(0, 60))
@example(before={}, steps={"a": 0, "b": 0}, reserve=33, hold=0)  # a prompt half there
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_prefetch_displaces_no_nearer_prompt_and_keeps_the_reserve(
    make_harness: Make,
    before: dict[str, int],
    steps: dict[str, int],
    reserve: int,
    hold: int,
) -> None:
    harness = make_harness(pool=128, piece=16, idle_horizon=2)
    prompts = {"a": A, "b": B, "c": C, "d": D}
    harness.update(before)
    for agent, tokens in prompts.items():
        harness.insert(tokens, harness.tag(agent, 48, tokens))
        harness.backup()
    held = harness.allocator.alloc(min(hold, harness.allocator.available_size()))
    was = resident(harness)
    harness.update(steps)
    cache = harness.cache
    cache.prefetcher.run(set, reserve=lambda: reserve, computing=True)
    left = harness.allocator.available_size() + cache.evictable_size()
    assert not cache.loads.active or left >= reserve
    assert cache.loads.active or resident(harness) == was, "evicted for nothing"
    walks = (cache.tree_core.walk(harness.key(t)) for t in prompts.values())
    brought = {n.kvflow.prefetched for walk in walks for n in walk} - {None}
    nearest = min((steps[agent] for _, agent in brought), default=None)
    for agent in prompts:
        if resident(harness)[agent] < was[agent] and nearest is not None:
            assert steps.get(agent, 99) > nearest, f"{agent} gave way to a farther one"
    harness.finish_loads()
    if held is not None:
        harness.allocator.free(held)
    harness.check()
