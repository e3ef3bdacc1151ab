"""What is kept in order equals what would be computed anew."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvflow_server.policy.priority import EvictionClass, Rank
from kvflow_server.policy.victims import Entry, Protection, Subtree, VictimOrder

_groups = st.sampled_from(list(EvictionClass))
_ranks = st.builds(Rank, _groups, st.integers(-3, 0))
_clients = st.sampled_from(["x", "y", "z"])


class SubtreeTrace(RuleBasedStateMachine):
    """Prompts come, go and change their rank."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[tuple[str, Rank]] = []
        self.subtree: Subtree | None = None

    @rule(client=_clients, rank=_ranks)
    def add(self, client: str, rank: Rank) -> None:
        if self.subtree is None:
            self.subtree = Subtree(client, rank)
        else:
            self.subtree.add(client, rank)
        self.prompts.append((client, rank))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        prompt = data.draw(st.sampled_from(self.prompts))
        self.prompts.remove(prompt)
        assert self.subtree is not None
        if self.subtree.remove(*prompt):
            self.subtree = None

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), rank=_ranks)
    def move(self, data: st.DataObject, rank: Rank) -> None:
        index = data.draw(st.integers(0, len(self.prompts) - 1))
        client, old = self.prompts[index]
        self.prompts[index] = (client, rank)
        assert self.subtree is not None
        self.subtree.move(old, rank)

    @precondition(lambda self: self.prompts)
    @rule()
    def go_on_with_a_copy(self) -> None:
        """As a split does; the original goes on without the copy noticing."""
        assert self.subtree is not None
        original, self.subtree = self.subtree, self.subtree.copy()
        original.add("elsewhere", Rank(EvictionClass.FIXED, 1))

    @invariant()
    def it_says_what_the_prompts_say(self) -> None:
        assert (self.subtree is None) == (not self.prompts)
        if self.subtree is not None:
            clients = Counter(client for client, _ in self.prompts)
            ranks = Counter(rank for _, rank in self.prompts)
            assert self.subtree.counts() == (clients, ranks)
            assert self.subtree.nearest == max(ranks)
            sole = next(iter(clients)) if len(clients) == 1 else None
            assert self.subtree.client == sole


def test_a_subtree_counts_its_prompts() -> None:
    run_state_machine_as_test(SubtreeTrace)


@st.composite
def _leaves(draw: st.DrawFn) -> list[Entry]:
    """Leaves with a client are those of fixed prompts."""
    leaves: list[Entry] = []
    for name in range(draw(st.integers(1, 12))):
        client = draw(st.none() | _clients)
        group = draw(_groups) if client is None else EvictionClass.FIXED
        near = draw(st.integers(-3, 0))
        leaves.append((group, near, draw(st.integers(0, 5)), name, client, f"n{name}"))
    return leaves


@given(leaves=_leaves(), cap=st.integers(0, 6), favoured=st.none() | _clients)
def test_the_first_victim_is_the_smallest_and_excess_goes_as_unknown(
    leaves: list[Entry], cap: int, favoured: str | None
) -> None:
    order, protection = VictimOrder(), Protection(cap)
    for leaf in leaves:
        order.add(leaf)
        if leaf[4] is not None:
            protection.change(leaf[4], 1)
    while leaves:
        held = Counter(leaf[4] for leaf in leaves if leaf[4] is not None)
        effective = list(leaves)
        for client, tokens in held.items():
            if tokens > cap and client != favoured:
                farthest = min(leaf for leaf in leaves if leaf[4] == client)
                effective.append((EvictionClass.UNKNOWN, 0, *farthest[2:]))
        victim = order.first(protection, favoured)
        assert victim == min(effective)
        (gone,) = (leaf for leaf in leaves if leaf[3] == victim[3])
        leaves.remove(gone)
        order.remove(gone)
        if gone[4] is not None:
            protection.change(gone[4], -1)
    assert order.first(protection) is None
    assert not protection.held
    assert not protection.over
