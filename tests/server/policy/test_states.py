"""Which state of a node's KV may follow which, and that nothing else goes unnoticed."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.policy.states import TRANSITIONS, KVState, StateLedger

IN_GPU, BACKED_UP, LOADING, OFFLOADING = (
    KVState.IN_GPU,
    KVState.BACKED_UP,
    KVState.LOADING,
    KVState.OFFLOADING,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OFFLOADING, BACKED_UP),
        (OFFLOADING, None),
        (LOADING, BACKED_UP),
        (LOADING, None),
        (LOADING, OFFLOADING),
        (IN_GPU, LOADING),
        (BACKED_UP, OFFLOADING),
        (None, LOADING),
        (None, BACKED_UP),
    ],
)
def test_a_copy_in_flight_is_never_evicted_nor_mixed_up(
    before: KVState | None, after: KVState | None
) -> None:
    assert (before, after) not in TRANSITIONS


def test_every_state_can_be_reached_and_left() -> None:
    for state in KVState:
        assert any(after is state for _, after in TRANSITIONS)
        assert any(before is state for before, _ in TRANSITIONS)


def test_the_life_of_a_fixed_prompt_is_legal() -> None:
    ledger = StateLedger()
    for state in (OFFLOADING, IN_GPU, BACKED_UP, LOADING, IN_GPU, BACKED_UP, IN_GPU):
        ledger.see(7, state)
        ledger.see(7, state)
    ledger.leave(7)
    assert ledger.violations == []
    assert len(ledger) == 0


def test_a_violation_names_the_node_and_both_states() -> None:
    ledger = StateLedger()
    ledger.see(7, OFFLOADING)
    ledger.see(7, BACKED_UP)
    assert ledger.violations == ["node 7 went from OFFLOADING to BACKED_UP"]


def test_a_node_that_leaves_while_a_copy_reads_it_is_a_violation() -> None:
    ledger = StateLedger()
    ledger.see(7, OFFLOADING)
    ledger.leave(7)
    assert ledger.violations == ["node 7 went from OFFLOADING to absent"]


def test_the_half_of_a_split_node_goes_on_in_its_state() -> None:
    ledger = StateLedger()
    ledger.see(7, IN_GPU)
    ledger.see(7, BACKED_UP)
    ledger.split(7, 8)
    ledger.see(8, LOADING)
    ledger.leave(7)
    assert ledger.violations == []


_STATES = st.lists(st.sampled_from([*KVState, None]), max_size=12)


@given(_STATES)
def test_exactly_the_transitions_outside_the_table_are_remembered(
    states: list[KVState | None],
) -> None:
    ledger = StateLedger()
    for state in states:
        if state is None:
            ledger.leave(1)
        else:
            ledger.see(1, state)
    moves = [(a, b) for a, b in pairwise([None, *states]) if a is not b]
    illegal = [move for move in moves if move not in TRANSITIONS]
    assert len(ledger.violations) == min(len(illegal), 16)


def test_the_table_says_nothing_of_staying() -> None:
    assert not any((s, s) in TRANSITIONS for s in [*KVState, None])
    assert len(TRANSITIONS) < len(list(product([*KVState, None], repeat=2))) / 2
