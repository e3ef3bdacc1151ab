"""Eviction order on SGLang's real tree and pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvflow_server.engine.config import Mode

Make = Callable[..., Any]
A, B, C = (list(range(base, base + 40)) for base in (1000, 2000, 3000))


def fill(harness: Any) -> None:
    for agent, tokens in (("a", A), ("b", B), ("c", C)):
        harness.insert(tokens, harness.tag(agent, 40, tokens))
    harness.backup()


def resident(harness: Any) -> dict[str, int]:
    return {n: harness.device_tokens(t) for n, t in (("a", A), ("b", B), ("c", C))}


def test_the_farthest_agent_goes_first_whatever_was_used_last(
    make_harness: Make,
) -> None:
    harness = make_harness(mode=Mode.EVICT)
    fill(harness)
    harness.update({"a": 1, "b": 3, "c": 2})
    harness.match(B)
    harness.evict(40)
    assert resident(harness) == {"a": 40, "b": 0, "c": 40}
    harness.evict(40)
    assert resident(harness) == {"a": 40, "b": 0, "c": 0}
    harness.check()


def test_suffixes_go_before_any_fixed_prompt(make_harness: Make) -> None:
    harness = make_harness(mode=Mode.EVICT)
    fill(harness)
    harness.update({"a": 1, "b": 2, "c": 3})
    tokens = [*C, 7, 8, 9]
    harness.insert(tokens, harness.tag("c", 40, C))
    assert harness.evict(3) == 3
    assert resident(harness) == {"a": 40, "b": 40, "c": 40}
    assert harness.device_tokens(tokens) == 40


def test_of_a_prompt_only_as_much_goes_as_is_needed(make_harness: Make) -> None:
    harness = make_harness(mode=Mode.EVICT, piece=16)
    fill(harness)
    harness.update({"a": 1, "b": 2, "c": 3})
    harness.evict(20)
    assert resident(harness) == {"a": 40, "b": 40, "c": 16}


def test_host_memory_is_evicted_in_the_same_order(make_harness: Make) -> None:
    harness = make_harness(mode=Mode.EVICT)
    fill(harness)
    harness.evict(120)
    harness.update({"a": 3, "b": 1, "c": 2})
    harness.cache.evict_host(40)
    walk = harness.cache.tree_core.walk
    kept = {
        n: sum(len(x.key) for x in walk(harness.key(t)))
        for n, t in (("a", A), ("b", B), ("c", C))
    }
    assert kept == {"a": 0, "b": 40, "c": 40}
    harness.check()


def test_with_the_mode_off_metadata_changes_nothing(make_harness: Make) -> None:
    harness = make_harness(mode=Mode.OFF)
    fill(harness)
    harness.update({"a": 0, "b": 5, "c": 9})
    harness.evict(40)
    assert harness.device_tokens(A) == 0, "least recently used"


# A trace of requests whose prefixes are shared, split and extended in every way.
_PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=24)
_OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "match", "evict"]), _PROMPTS),
    min_size=5,
    max_size=40,
)


@pytest.mark.parametrize("host", [False, True])
@given(trace=_OPERATIONS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_without_metadata_the_victims_are_those_of_stock_lru(
    make_harness: Make, host: bool, trace: list[tuple[str, list[int]]]
) -> None:
    ours = make_harness(pool=48, host=host, mode=Mode.FULL)
    stock = make_harness(pool=48, host=host, stock=True)
    seen: list[list[int]] = []
    for action, tokens in trace:
        for harness in (ours, stock):
            _apply(harness, action, tokens)
        seen.append(tokens)
        assert ours.allocator.available_size() == stock.allocator.available_size()
        for prompt in seen:
            assert device_and_total(ours, prompt) == device_and_total(stock, prompt)
    ours.check()


def _apply(harness: Any, action: str, tokens: list[int]) -> None:
    if action == "insert":
        harness.insert(tokens)
        if harness.cache.cache_controller is not None:
            harness.backup()
    elif action == "match":
        harness.match(tokens)
    else:
        harness.evict(len(tokens))


def device_and_total(harness: Any, tokens: list[int]) -> tuple[int, int]:
    """Tokens of the prefix on the device and in any tier, read without a touch."""
    device = total = 0
    node, rest = harness.cache.tree_core.root_node, harness.key(tokens)
    while len(rest):
        child = node.children.get(rest.child_key(1))
        if child is None:
            break
        matched = child.key.match(rest)
        total += matched
        device += 0 if child.evicted else matched
        if matched < len(child.key):
            break
        node, rest = child, rest[matched:]
    return device, total
