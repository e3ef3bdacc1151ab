"""Fixed prompts in SGLang's real tree: where they end is a node, and it stays known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]
FIXED = list(range(1000, 1040))


def node_lengths(harness: Any, tokens: list[int]) -> list[int]:
    return [len(node.key) for node in harness.cache.tree_core.walk(harness.key(tokens))]


def prompts(harness: Any, agent: str) -> list[Any]:
    return list(harness.cache.prompts.handles("client-0123456789abcdef", agent))


def test_the_prompt_is_cut_at_the_stride_and_ends_in_a_node(make_harness: Make) -> None:
    harness = make_harness(piece=16)
    tokens = [*FIXED, 1, 2, 3]
    harness.insert(tokens, harness.tag("a", 40, FIXED))
    assert node_lengths(harness, tokens) == [16, 24, 3]
    (handle,) = prompts(harness, "a")
    assert harness.cache.tree_core.depth_of(handle.node) == 40
    harness.check()


def test_writing_in_pieces_leaks_no_slot(make_harness: Make) -> None:
    harness = make_harness(host=False, mode=_evict())
    for suffix in range(3):
        tokens = [*FIXED, suffix, 7]
        harness.insert(tokens, harness.tag("a", 40, FIXED))
    held = harness.cache.evictable_size()
    assert held == 40 + 3 * 2
    assert harness.allocator.available_size() == 256 - held
    harness.check()


def test_a_prompt_that_was_cached_before_it_was_marked_is_split(
    make_harness: Make,
) -> None:
    harness = make_harness()
    harness.insert([*FIXED, 1, 2])
    harness.insert([*FIXED, 1, 2], harness.tag("a", 40, FIXED))
    (handle,) = prompts(harness, "a")
    assert harness.cache.tree_core.depth_of(handle.node) == 40
    harness.check()


def test_a_later_split_leaves_the_prompt_s_end_where_it_was(
    make_harness: Make,
) -> None:
    harness = make_harness()
    harness.insert([*FIXED, 1], harness.tag("a", 40, FIXED))
    harness.insert([*FIXED[:20], 9, 9, 9])
    (handle,) = prompts(harness, "a")
    assert harness.cache.tree_core.depth_of(handle.node) == 40
    harness.check()


def test_two_agents_may_share_a_beginning(make_harness: Make) -> None:
    harness = make_harness()
    other = [*FIXED[:20], *range(2000, 2020)]
    harness.insert(FIXED, harness.tag("a", 40, FIXED))
    harness.insert(other, harness.tag("b", 40, other))
    shared = next(harness.cache.tree_core.walk(harness.key(FIXED)))
    clients, _ranks = shared.kvflow.subtree.counts()
    assert sum(clients.values()) == 2
    harness.check()


def test_an_agent_with_two_prompts_has_two_boundaries(make_harness: Make) -> None:
    harness = make_harness()
    other = list(range(3000, 3030))
    harness.insert(FIXED, harness.tag("a", 40, FIXED))
    harness.insert(other, harness.tag("a", 30, other))
    assert [handle.tokens for handle in prompts(harness, "a")] == [40, 30]
    harness.check()


def test_a_prompt_that_leaves_the_tree_is_forgotten(make_harness: Make) -> None:
    harness = make_harness(host=False, mode=_evict())
    harness.insert(FIXED, harness.tag("a", 40, FIXED))
    harness.evict(1000)
    assert prompts(harness, "a") == []
    harness.check()


def test_a_reset_forgets_every_prompt_and_keeps_what_clients_said(
    make_harness: Make,
) -> None:
    harness = make_harness()
    harness.update({"a": 1})
    harness.insert(FIXED, harness.tag("a", 40, FIXED))
    harness.cache.reset()
    harness.allocator.clear()
    assert len(harness.cache.prompts) == 0
    assert harness.cache.table.steps("client-0123456789abcdef", "a") == 1
    harness.insert(FIXED, harness.tag("a", 40, FIXED))
    harness.check()


def _evict() -> Any:
    from kvflow_server.engine.config import Mode

    return Mode.EVICT
