"""Learned boundaries: found by repetition, kept against one odd call."""

from __future__ import annotations

from array import array
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.policy.learning import (
    BoundaryLearner,
    LearningLimits,
    common_tokens,
)

FIXED = list(range(1000, 1400))
OTHER = list(range(5000, 5300))


def prompt(*tokens: int, fixed: list[int] = FIXED) -> array[int]:
    return array("q", [*fixed, *tokens])


def learn(*prompts: array[int], **limits: int) -> tuple[BoundaryLearner, list[int]]:
    learner = BoundaryLearner(LearningLimits(**limits))
    return learner, [learner.observe("c", "a", tokens) for tokens in prompts]


tokens = st.lists(st.integers(0, 2), max_size=1300)


@given(tokens, tokens, st.integers(0, 1200))
def test_the_common_prefix_is_what_a_loop_finds(
    old: list[int], new: list[int], shared: int
) -> None:
    old, new = [7] * shared + old, [7] * shared + new
    naive = sum(
        1 for _ in takewhile(lambda p: p[0] == p[1], zip(old, new, strict=False))
    )
    assert common_tokens(array("q", old), array("q", new)) == naive


def test_the_third_call_finds_the_boundary() -> None:
    learner, found = learn(*(prompt(n, n, n) for n in range(5)))
    assert found == [0, 0, 400, 400, 400]
    assert learner.found_after("c", "a") == 3
    assert learner.drift("c", "a") is None


def test_a_retry_teaches_nothing() -> None:
    learner, found = learn(prompt(1), prompt(1), prompt(1), prompt(2))
    assert found == [0, 0, 0, 0]
    assert learner.boundaries("c", "a") == []


def test_calls_that_part_early_every_time_are_lost() -> None:
    drifting = [array("q", [1, n, *FIXED]) for n in range(3)]
    learner, _ = learn(*drifting[:2])
    assert not learner.is_lost("c", "a")
    learner, _ = learn(*drifting)
    assert learner.is_lost("c", "a")
    for n in range(3):
        learner.observe("c", "a", prompt(n))
    assert not learner.is_lost("c", "a")


def test_suffixes_that_happen_to_begin_alike_do_not_lengthen_it() -> None:
    _, found = learn(prompt(1, 2), prompt(1, 3), prompt(9), prompt(8))
    assert found[2:] == [400, 400]


@pytest.mark.parametrize("shared", [100, 250])
def test_one_odd_call_changes_nothing(shared: int) -> None:
    odd = array("q", FIXED[:shared] + OTHER)
    learner, found = learn(*(prompt(n) for n in range(4)), odd, prompt(9), prompt(8))
    assert [found[3], *found[5:]] == [400, 400, 400]
    assert learner.boundaries("c", "a") == [400]


def test_a_prompt_that_is_shorter_for_good_shrinks_it() -> None:
    short = [prompt(n, fixed=FIXED[:300]) for n in range(4)]
    learner, found = learn(*(prompt(n) for n in range(4)), *short)
    assert found[-1] == 300
    drift = learner.drift("c", "a")
    assert drift is not None
    assert (drift.token, drift.expected) == (300, 400)


def test_two_prompts_of_one_agent_are_two_boundaries() -> None:
    both = [tokens for n in range(3) for tokens in (prompt(n), prompt(n, fixed=OTHER))]
    learner, found = learn(*both)
    assert found[-2:] == [400, 300]
    assert sorted(learner.boundaries("c", "a")) == [300, 400]


def test_a_boundary_grows_when_a_full_window_is_longer() -> None:
    first = [prompt(n) for n in range(3)]
    longer = [prompt(7, *range(50), n + 100) for n in range(10)]
    _, found = learn(*first, *longer)
    assert found[2] == 400
    assert found[-1] == 451


def test_calls_that_part_at_the_head_drift_and_say_where() -> None:
    drifting = [array("q", [1, 2, 3, n, *FIXED]) for n in range(5)]
    learner, found = learn(*drifting)
    assert found == [0] * 5
    drift = learner.drift("c", "a")
    assert drift is not None
    assert (drift.calls, drift.token, drift.expected) == (4, 3, 404)
    assert drift.lost == 4 * 401


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), tokens), max_size=40)
)
def test_it_stays_within_its_bounds(calls: list[tuple[str, int, list[int]]]) -> None:
    limits = LearningLimits(
        agents=3, prompts_per_agent=2, min_tokens=2, window=3, max_tokens=100
    )
    learner = BoundaryLearner(limits)
    for client, agent, prompt in calls:
        boundary = learner.observe(client, str(agent), array("q", prompt))
        assert 0 <= boundary <= min(len(prompt), 100) or boundary == 0
        assert len(learner) <= 3
        assert len(learner.boundaries(client, str(agent))) <= 2


def test_a_client_that_goes_is_forgotten() -> None:
    learner, _ = learn(prompt(1), prompt(2), prompt(3))
    learner.observe("other", "a", prompt(1))
    learner.drop_client("c")
    assert list(learner.agents()) == [("other", "a")]


def test_what_goes_for_room_is_forgotten_with_its_client() -> None:
    learner = BoundaryLearner(LearningLimits(agents=2))
    for client in ("one", "two", "three"):
        learner.observe(client, "a", prompt(1))
    learner.drop_client("one")
    learner.observe("two", "b", prompt(1))
    learner.drop_client("two")
    assert list(learner.agents()) in ([("three", "a")], [])
    assert len(learner) <= 1
