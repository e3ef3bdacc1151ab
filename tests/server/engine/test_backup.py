"""What goes to host memory, on SGLang's real tree and pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvflow_server.policy.backup import Backup

Make = Callable[..., Any]
FIXED = list(range(1000, 1040))
CLIENT = "client-0123456789abcdef"


def call(harness: Any, tokens: list[int], agent: str = "a") -> int:
    """One request of `agent` as the engine sees it; tokens of it found anywhere."""
    walk = harness.cache.tree_core.walk(harness.key(tokens))
    found = sum(len(node.key) for node in walk)
    tag = harness.tag(agent, 40, FIXED)
    tag.suffix_hits = harness.cache.backup.hits(CLIENT, agent, tokens[40:])
    harness.insert(tokens, tag)
    harness.backup()
    return found


def backed_up(harness: Any, tokens: list[int]) -> int:
    walk = harness.cache.tree_core.walk(harness.key(tokens))
    return sum(len(node.key) for node in walk if node.backuped)


@pytest.mark.parametrize(
    ("backup", "first", "second"),
    [(Backup.FIXED, 40, 40), (Backup.REUSED, 40, 60), (Backup.ALL, 60, 60)],
)
def test_a_suffix_after_its_first_and_second_use(
    make_harness: Make, backup: Backup, first: int, second: int
) -> None:
    harness = make_harness(backup=backup)
    call(harness, [*FIXED, *range(500, 520)])
    tokens = [*FIXED, *range(20)]
    call(harness, tokens)
    assert backed_up(harness, tokens) == first
    call(harness, tokens)
    assert backed_up(harness, tokens) == second
    harness.check()


def test_new_suffixes_cause_no_traffic_and_the_counters_say_so(
    make_harness: Make,
) -> None:
    harness = make_harness(backup=Backup.REUSED)
    for index in range(2):
        call(harness, [*FIXED, *range(index * 100, index * 100 + 20)])
    before = harness.cache.counters.d2h_tokens
    assert before == 60, "the fixed prompt, and the suffix of the very first call"
    for index in range(2, 8):
        call(harness, [*FIXED, *range(index * 100, index * 100 + 20)])
    counters = harness.cache.counters
    assert counters.d2h_tokens == before
    assert counters.d2h_bytes == before * 2 * 2 * 8 * 4, (
        "K and V, layers, dims, float32"
    )
    harness.check()


@pytest.mark.parametrize("backup", [Backup.REUSED, Backup.ALL])
def test_a_chat_finds_its_history_in_every_turn_whatever_was_evicted(
    make_harness: Make, backup: Backup
) -> None:
    harness = make_harness(pool=512, backup=backup)
    history = [*FIXED]
    for turn in range(6):
        before = len(history)
        history = [*history, *range(turn * 100, turn * 100 + 12)]
        assert call(harness, history) == (before if turn else 0)
        harness.evict(1000)
    harness.check()


def test_requests_without_metadata_are_written_through_as_ever(
    make_harness: Make,
) -> None:
    harness = make_harness(backup=Backup.FIXED)
    tokens = list(range(60))
    harness.insert(tokens)
    harness.backup()
    assert backed_up(harness, tokens) == 60
