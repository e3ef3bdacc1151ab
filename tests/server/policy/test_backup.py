"""Whose dynamic suffixes go to host memory: chats do, one-off suffixes do not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.policy.backup import Backup, BackupLimits, SuffixBackup

AT_ONCE = 1


def random_suffixes(count: int, length: int = 32) -> list[list[int]]:
    source = random.Random(0)
    return [[source.randrange(50_000) for _ in range(length)] for _ in range(count)]


@pytest.mark.parametrize(
    ("backup", "hits"), [(Backup.ALL, AT_ONCE), (Backup.FIXED, math.inf)]
)
def test_fixed_and_all_ask_nobody(backup: Backup, hits: float) -> None:
    policy = SuffixBackup(backup)
    assert {policy.hits("c", "a", s) for s in random_suffixes(5)} == {hits}
    assert len(policy) == 0


def test_suffixes_that_are_always_new_are_backed_up_on_their_second_use() -> None:
    policy = SuffixBackup(Backup.REUSED)
    first, *others = [policy.hits("c", "a", s) for s in random_suffixes(20)]
    assert first == AT_ONCE, "nobody knows yet"
    assert set(others) == {2}


def test_a_chat_s_history_is_backed_up_at_once_in_every_turn() -> None:
    policy = SuffixBackup(Backup.REUSED)
    history: list[int] = []
    for turn in random_suffixes(6):
        history = history + turn
        assert policy.hits("c", "a", history) == AT_ONCE


def test_many_chats_side_by_side_are_recognised() -> None:
    policy = SuffixBackup(Backup.REUSED)
    histories = random_suffixes(50)
    for history in histories:
        policy.hits("c", "a", history)
    later = [policy.hits("c", "a", [*h, 1, 2, 3]) for h in histories]
    assert set(later) == {AT_ONCE}
    fresh = random_suffixes(51)[-1]
    assert policy.hits("c", "a", fresh) == AT_ONCE, "the agent is known to go on"


def test_an_agent_that_no_longer_goes_on_is_found_out() -> None:
    policy = SuffixBackup(Backup.REUSED, BackupLimits(memory_calls=4))
    history, *others = random_suffixes(10)
    policy.hits("c", "a", history)
    policy.hits("c", "a", [*history, 1, 2])
    assert [policy.hits("c", "a", s) for s in others][:4] == [1, 1, 1, 2]


def test_one_agent_s_habit_is_not_another_s() -> None:
    policy = SuffixBackup(Backup.REUSED)
    history, one, two = random_suffixes(3)
    policy.hits("c", "chat", history)
    policy.hits("c", "worker", one)
    policy.hits("c", "chat", [*history, *one])
    assert policy.hits("c", "worker", two) == 2
    assert policy.hits("other", "chat", [*history, *one]) == AT_ONCE, "its first call"
    assert policy.hits("other", "chat", two) == 2


def test_the_same_call_again_is_no_conversation() -> None:
    policy = SuffixBackup(Backup.REUSED)
    (suffix,) = random_suffixes(1)
    assert [policy.hits("c", "a", suffix) for _ in range(4)] == [1, 2, 2, 2]


def test_a_common_opening_is_no_conversation() -> None:
    policy = SuffixBackup(Backup.REUSED)
    opening = list(range(12))
    hits = [policy.hits("c", "a", [*opening, *s]) for s in random_suffixes(6)]
    assert hits == [1, 2, 2, 2, 2, 2]


@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=200),
    st.lists(st.integers(0, 9), min_size=1, max_size=50),
)
def test_every_continuation_is_recognised(suffix: list[int], more: list[int]) -> None:
    policy = SuffixBackup(Backup.REUSED)
    for other in random_suffixes(3):
        policy.hits("c", "a", other)
    policy.hits("c", "a", suffix)
    assert policy.hits("c", "a", [*suffix, *more]) == AT_ONCE


def test_what_is_remembered_is_bounded() -> None:
    policy = SuffixBackup(Backup.REUSED, BackupLimits(beginnings=8, agents=2))
    for index, suffix in enumerate(random_suffixes(40)):
        policy.hits("c", f"agent {index % 5}", suffix)
    assert len(policy) == 8
