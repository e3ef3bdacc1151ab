"""Which agents are fetched for, in which order, for whom no longer, and what fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.prefetch import (
    CandidateIndex,
    Credit,
    PrefetchAccounts,
    PrefetchLimits,
    Room,
    Usage,
)
from kvflow_server.policy.steps import StepTable

LIMITS = PrefetchLimits(horizon=1, idle_horizon=1, credit_window=4)
WIDE = PrefetchLimits(horizon=1, idle_horizon=2)


class Known:
    """A table, and an index of candidates that follows it."""

    def __init__(self, limits: PrefetchLimits = LIMITS) -> None:
        self.table = StepTable()
        self.index = CandidateIndex(self.table, limits)
        self.seq = 0

    def say(self, steps: dict[str, int] | None = None, **fields: Any) -> None:
        self.seq += 1
        known = {"client": "c", "run": "r", "seq": self.seq, **fields}
        self.table.apply(StepUpdate(steps=steps, **known), 0)

    def miss(self, *agents: str, client: str = "c") -> None:
        for agent in agents:
            self.index.miss(client, agent)

    def names(self) -> list[str]:
        self.index.take_in()
        return [choice.agent for choice in self.index.in_order()]


def test_only_what_is_within_the_horizon_nearest_first() -> None:
    known = Known()
    known.miss("far", "next", "now", "unheard")
    known.say({"far": 2, "next": 1, "now": 0})
    assert known.names() == ["now", "next"]


def test_the_horizon_of_an_idle_bus_is_within_reach_too() -> None:
    known = Known(WIDE)
    known.miss("farther", "far", "next")
    known.say({"far": 2, "next": 1, "farther": 3})
    assert known.names() == ["next", "far"]


def test_only_agents_whose_prompt_is_missing_are_candidates() -> None:
    known = Known()
    known.say({"here": 1, "gone": 1})
    known.miss("here", "gone")
    known.index.found("c", "here")
    assert known.names() == ["gone"]


def test_among_equally_near_the_likeliest_first_and_unknown_counts_as_sure() -> None:
    known = Known()
    known.miss("rare", "usual", "unknown")
    known.say(
        {"rare": 1, "usual": 1, "unknown": 1},
        likelihood={"rare": 0.1, "usual": 0.9},
    )
    assert known.names() == ["unknown", "usual", "rare"]


def test_a_likelihood_that_changes_alone_changes_the_order() -> None:
    known = Known()
    known.miss("left", "right")
    known.say({"left": 1, "right": 1}, likelihood={"left": 0.9, "right": 0.1})
    assert known.names() == ["left", "right"]
    known.say({"left": 1, "right": 1}, likelihood={"left": 0.1, "right": 0.9})
    assert known.names() == ["right", "left"]


def test_among_equals_who_has_waited_longest_comes_first() -> None:
    known = Known()
    known.say({"a": 1, "z": 1})
    known.miss("z", "a")
    assert known.names() == ["z", "a"]


def test_a_run_still_to_come_is_served_after_every_live_one() -> None:
    known = Known()
    known.miss("a", "z")
    for run in ("one", "two"):
        known.say({"a": 1, "z": 2}, run=run)
    known.say(run="one", final=True)
    known.say({"z": 0}, run="two")
    assert known.names() == ["z", "a"]


def test_a_run_that_ends_or_turns_elsewhere_takes_its_candidates_along() -> None:
    known = Known()
    known.miss("a", "b")
    known.say({"a": 1, "b": 1})
    known.say({"b": 1})
    assert known.names() == ["b"]
    known.say(final=True)
    assert known.names() == []


def test_a_lease_that_ends_takes_its_candidates_along() -> None:
    known = Known()
    known.miss("a")
    known.say({"a": 1})
    known.index.drop("c")
    assert known.names() == []
    known.table.expire(1e9)
    known.miss("a")
    assert known.names() == []


_AGENTS = st.sampled_from(["a", "b", "c", "d"])
_CLIENTS = st.sampled_from(["one", "two"])
_EVENTS = st.one_of(
    st.tuples(st.just("miss"), _CLIENTS, _AGENTS),
    st.tuples(st.just("found"), _CLIENTS, _AGENTS),
    st.tuples(st.just("end"), _CLIENTS, st.sampled_from(["r", "s"])),
    st.tuples(
        st.just("say"),
        _CLIENTS,
        st.dictionaries(_AGENTS, st.integers(0, 4)),
        st.dictionaries(_AGENTS, st.sampled_from([0.25, 0.5])),
        st.sampled_from(["r", "s"]),
    ),
)


@given(st.lists(_EVENTS, max_size=30))
def test_the_index_agrees_with_asking_about_everyone(events: list[Any]) -> None:
    known = Known(WIDE)
    missing: set[tuple[str, str]] = set()
    ended: set[tuple[str, str]] = set()
    for kind, client, *rest in events:
        if kind == "miss":
            known.index.miss(client, rest[0])
            missing.add((client, rest[0]))
        elif kind == "found":
            known.index.found(client, rest[0])
            missing.discard((client, rest[0]))
        elif kind == "end":
            known.say(client=client, run=rest[0], final=True)
            ended.add((client, rest[0]))
        else:
            steps, likelihood, run = rest
            known.say(steps, likelihood=likelihood, client=client, run=run)
    known.index.take_in()
    found = [(c.retained, c.steps, c.unlikelihood) for c in known.index.in_order()]
    wanted = {}
    for client, agent in missing:
        steps = known.table.steps(client, agent)
        retained = steps is None
        if steps is None:
            steps = known.table.steps_of_next_run(client, agent)
        if steps is not None and steps <= 2:
            likely = known.table.likelihood(client, agent)
            unlikely = 0.0 if likely is None else 1 - likely
            wanted[client, agent] = (retained, steps, unlikely)
    assert {(c.client, c.agent) for c in known.index.in_order()} == set(wanted)
    assert found == sorted(wanted.values())


def test_credit_stops_a_client_whose_prefetches_go_unused() -> None:
    credit = Credit()
    for _ in range(3):
        credit.record(False, LIMITS)
    assert credit.allows(LIMITS), "too little evidence"
    credit.record(False, LIMITS)
    assert not credit.allows(LIMITS)
    credit.record(True, LIMITS)
    credit.record(True, LIMITS)
    assert credit.allows(LIMITS)


def throttled() -> PrefetchAccounts:
    accounts = PrefetchAccounts(LIMITS)
    for _ in range(4):
        accounts.issued("c", "a", 10)
        accounts.settled("c", "a", 10, used=False)
    return accounts


def test_tokens_are_accounted_for_by_agent() -> None:
    accounts = PrefetchAccounts(LIMITS)
    accounts.issued("c", "a", 10)
    accounts.issued("c", "b", 5)
    accounts.settled("c", "a", 6, used=True)
    accounts.settled("c", "a", 4, used=False)
    assert accounts.of("c") == {"a": Usage(10, 6, 4), "b": Usage(5, 0, 0)}


def test_a_miss_counts_for_a_throttled_client_only_where_it_was_held_back() -> None:
    accounts = throttled()
    assert not accounts.allows("c", "a")
    for _ in range(4):
        accounts.missed("c", "never planned for")
    assert accounts.throttled("c")
    accounts.missed("c", "a")
    accounts.missed("c", "a")
    assert accounts.throttled("c"), "one miss, one prefetch that would have been used"
    assert not accounts.allows("c", "a")
    accounts.missed("c", "a")
    assert accounts.allows("c", "a")


def test_one_client_s_waste_does_not_throttle_another() -> None:
    assert throttled().allows("other", "a")


def test_nothing_is_kept_of_clients_that_are_gone_or_never_were() -> None:
    accounts = throttled()
    accounts.drop("c")
    accounts.settled("c", "a", 10, used=True)
    accounts.missed("stranger", "a")
    assert len(accounts) == 0


def test_the_agents_of_one_account_are_bounded() -> None:
    accounts = PrefetchAccounts(PrefetchLimits(agents_accounted=2))
    for agent in "abc":
        accounts.issued("c", agent, 1)
    assert list(accounts.of("c")) == ["b", "c"]


@pytest.mark.parametrize(
    ("room", "below", "fits"),
    [
        (Room(free=100, unlocked=0, reserve=0), 0, True),
        (Room(free=40, unlocked=60, reserve=0), 24, True),
        (Room(free=40, unlocked=60, reserve=0), 23, False),
        (Room(free=100, unlocked=0, reserve=36), 0, True),
        (Room(free=100, unlocked=0, reserve=37), 0, False),
        (Room(free=0, unlocked=200, reserve=137), 200, False),
    ],
)
def test_what_fits_leaves_the_reserve_and_displaces_only_what_goes_first(
    room: Room, below: int, fits: bool
) -> None:
    assert room.takes(64, lambda enough: min(below, enough)) is fits


_TOKENS = st.integers(0, 50)


@given(free=_TOKENS, below=_TOKENS, above=_TOKENS, reserve=_TOKENS, tokens=_TOKENS)
def test_what_is_granted_exceeds_no_budget(
    free: int, below: int, above: int, reserve: int, tokens: int
) -> None:
    room = Room(free=free, unlocked=below + above, reserve=reserve)
    granted = room.takes(tokens, lambda enough: min(below, enough))
    assert granted == (
        tokens <= free + below and free + below + above - tokens >= reserve
    )


def test_what_the_free_slots_hold_is_not_searched_for() -> None:
    room = Room(free=64, unlocked=64, reserve=0)
    assert room.takes(64, lambda enough: pytest.fail("searched"))
