"""The four states on SGLang's real tree, and that an illegal move is reported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow_server.policy.states import KVState

Make = Callable[..., Any]
A = list(range(1000, 1048))


def states(harness: Any, tokens: list[int]) -> list[KVState]:
    from kvflow_server.engine.states import kv_state

    walk = harness.cache.tree_core.walk(harness.key(tokens))
    return [kv_state(node) for node in walk]


def inserted(make_harness: Make) -> Any:
    harness = make_harness(pool=128, piece=16)
    harness.insert(A, harness.tag("a", 48, A))
    return harness


def test_a_prompt_goes_through_all_four_states(make_harness: Make) -> None:
    harness = inserted(make_harness)
    assert states(harness, A) == [KVState.OFFLOADING] * 3
    harness.check()
    harness.backup()
    assert states(harness, A) == [KVState.IN_GPU] * 3
    harness.check()
    harness.evict(1000)
    assert states(harness, A) == [KVState.BACKED_UP] * 3
    harness.check()
    harness.update({"a": 0})
    harness.prefetch()
    assert states(harness, A)[:2] == [KVState.LOADING] * 2
    harness.check()
    harness.finish_loads()
    assert states(harness, A)[:2] == [KVState.IN_GPU] * 2
    harness.check()


def test_what_is_offloading_is_not_evicted(make_harness: Make) -> None:
    harness = inserted(make_harness)
    assert harness.evict(1000) == 0
    assert states(harness, A) == [KVState.OFFLOADING] * 3
    harness.backup()
    harness.check()


def test_what_is_loading_is_not_evicted(make_harness: Make) -> None:
    harness = inserted(make_harness)
    harness.backup()
    harness.evict(1000)
    harness.update({"a": 0})
    harness.prefetch()
    assert harness.evict(1000) == 0
    assert KVState.LOADING in states(harness, A)
    harness.finish_loads()
    harness.check()


def test_losing_a_node_whose_backup_is_in_flight_is_named(make_harness: Make) -> None:
    harness = inserted(make_harness)
    harness.check()
    *_, last = harness.cache.tree_core.walk(harness.key(A))
    # As if SGLang had not locked it for the copy.
    full = harness.cache.full_component
    full.evict_component(last, {full.component_type: []}, {}, [])
    with pytest.raises(AssertionError, match="OFFLOADING to BACKED_UP"):
        harness.cache.check_integrity()
    harness.backup()


def test_reading_what_is_loading_is_named(make_harness: Make) -> None:
    from kvflow_server.engine.states import read_early

    harness = inserted(make_harness)
    harness.backup()
    harness.evict(1000)
    harness.update({"a": 0})
    harness.prefetch()
    node = harness.match(A[:32]).last_device_node
    early = SimpleNamespace(rid="early", last_node=node)
    with pytest.raises(AssertionError, match="early reads node"):
        read_early(harness.cache.tree_core, [early])
    harness.finish_loads()
    read_early(harness.cache.tree_core, [early])
