"""The order of eviction, kept instead of computed.

`Subtree` says how near the nearest prompt below a node is, without looking at them all;
`VictimOrder` holds the leaves sorted, so that the next victim is its first entry;
`Protection` counts what each client's prompts keep on the device, and who holds more
than its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from .priority import UNKNOWN, EvictionClass, Rank

__all__ = ["Entry", "Protection", "Subtree", "VictimOrder"]

Entry: TypeAlias = tuple[EvictionClass, float, float, int, str | None, Any]
"""Class, -P, last access, node id, the one client it is protected for if there is one,
and the node. Ids differ, so a comparison never gets past them, and an entry compares
with an `EvictionKey` by what they share."""


class Subtree:
    """The prompts that end at a node or below it, counted by rank and by client.

    Most nodes lie on the path of a single prompt: they hold its rank and its client as
    they are. Counts are kept only where paths meet.
    """

    __slots__ = ("_clients", "_ranks")

    def __init__(self, client: str, rank: Rank) -> None:
        self._clients: str | dict[str, int] = client
        self._ranks: Rank | dict[Rank, int] = rank

    def copy(self) -> Subtree:
        twin = Subtree.__new__(Subtree)
        clients, ranks = self._clients, self._ranks
        twin._clients = dict(clients) if isinstance(clients, dict) else clients
        twin._ranks = dict(ranks) if isinstance(ranks, dict) else ranks
        return twin

    @property
    def nearest(self) -> Rank:
        """The largest rank. O(different ranks)."""
        ranks = self._ranks
        return max(ranks) if isinstance(ranks, dict) else ranks

    @property
    def client(self) -> str | None:
        """Whose prompts these are, if they are all of one client."""
        return None if isinstance(self._clients, dict) else self._clients

    def add(self, client: str, rank: Rank) -> None:
        if self._clients != client:
            if not isinstance(self._clients, dict):
                self._clients = {self._clients: self._size()}
            self._clients[client] = self._clients.get(client, 0) + 1
        if not isinstance(self._ranks, dict):
            self._ranks = {self._ranks: 1}
        self._ranks[rank] = self._ranks.get(rank, 0) + 1

    def remove(self, client: str, rank: Rank) -> bool:
        """Take one prompt out; True if it was the last."""
        if not isinstance(self._ranks, dict):
            return True
        self._take(rank)
        if len(self._ranks) == 1 and self._size() == 1:
            self._ranks = next(iter(self._ranks))
        if isinstance(self._clients, dict):
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]
            if len(self._clients) == 1:
                self._clients = next(iter(self._clients))
        return False

    def move(self, old: Rank, new: Rank) -> None:
        """One prompt's rank has changed. O(1)."""
        ranks = self._ranks
        if not isinstance(ranks, dict):
            self._ranks = new
            return
        left = ranks[old] - 1
        if left:
            ranks[old] = left
        else:
            del ranks[old]
        ranks[new] = ranks.get(new, 0) + 1

    def counts(self) -> tuple[dict[str, int], dict[Rank, int]]:
        """Prompts by client and by rank, for checks."""
        clients, ranks = self._clients, self._ranks
        return (
            dict(clients) if isinstance(clients, dict) else {clients: self._size()},
            dict(ranks) if isinstance(ranks, dict) else {ranks: 1},
        )

    def _size(self) -> int:
        ranks = self._ranks
        return sum(ranks.values()) if isinstance(ranks, dict) else 1

    def _take(self, rank: Rank) -> None:
        ranks = self._ranks
        assert isinstance(ranks, dict)
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]


class Protection:
    """Tokens on the device that each client's prompts, and no other's, are kept for."""

    def __init__(self, cap: float = float("inf")) -> None:
        self.cap = cap
        """Tokens; a client that holds more is in `over`."""
        self.held: dict[str, int] = {}
        self.over: dict[str, None] = {}
        """At most pool/cap clients: the pool holds no more."""

    def change(self, client: str, tokens: int) -> None:
        """`client` holds `tokens` more than before, or fewer. O(1)."""
        held = self.held.get(client, 0) + tokens
        if held:
            self.held[client] = held
        else:
            del self.held[client]
        if held > self.cap:
            self.over[client] = None
        else:
            self.over.pop(client, None)

    def excesses(self) -> Iterator[tuple[str, int]]:
        """(client, tokens above its share) of those who hold more than it."""
        for client in self.over:
            yield client, int(self.held[client] - self.cap)

    def clear(self) -> None:
        self.held.clear()
        self.over.clear()


class VictimOrder:
    """Leaves sorted by their key; each operation is O(log n)."""

    __slots__ = ("_by_client", "_entries")

    def __init__(self) -> None:
        self._entries: SortedList = SortedList()
        self._by_client: dict[str, SortedList] = {}

    def add(self, entry: Entry) -> None:
        self._entries.add(entry)
        client = entry[4]
        if client is not None:
            mine = self._by_client.get(client)
            if mine is None:
                mine = self._by_client[client] = SortedList()
            mine.add(entry)

    def remove(self, entry: Entry) -> None:
        """Raises ValueError if the entry is not there."""
        self._entries.remove(entry)
        client = entry[4]
        if client is not None:
            mine = self._by_client[client]
            mine.remove(entry)
            if not mine:
                del self._by_client[client]

    def first(
        self, protection: Protection | None = None, beneficiary: str | None = None
    ) -> Entry | None:
        """The next victim, as its entry; None if there is none.

        The farthest entry of a client over its share competes by recency with what is
        unknown (its class and P say so in the entry), one at a time, until the client
        holds no more than its share. That is not done in favour of the client itself:
        for the `beneficiary` its own entries stand where they stand.
        """
        if not self._entries:
            return None
        best: Entry = self._entries[0]
        for client in protection.over if protection is not None else ():
            mine = self._by_client.get(client)
            if mine and client != beneficiary:
                excess: Entry = (*UNKNOWN, *mine[0][2:])
                best = min(best, excess)
        return best

    def of(self, client: str) -> Iterator[Entry]:
        """The leaves kept for `client` alone, in order."""
        yield from self._by_client.get(client, ())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)
