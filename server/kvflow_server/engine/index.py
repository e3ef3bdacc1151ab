"""What is found without a walk over the tree: the next victim, and a run's nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvflow_server.policy.priority import Owner
from kvflow_server.policy.victims import Entry, VictimOrder

from .node import Writer, state_of

__all__ = ["LeafSet", "Writers"]


class LeafSet(set[Any]):
    """The evictable leaves of one tier: a set, as SGLang has it, that is also sorted.

    SGLang adds and discards; who changes what a node's key depends on says so with
    `rekey`. A node is in one tier's set at a time.

    A set is SGLang's own, an order is not: what fails in keeping it goes to `fault`, and
    from then on the set is `broken`, a set without any order, until `mend`.
    """

    __slots__ = ("_aside", "_entry_of", "_fault", "broken", "order")

    def __init__(
        self, entry_of: Callable[[Any], Entry], fault: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._entry_of = entry_of
        self._fault = fault
        self._aside: list[Any] = []
        self.broken = False
        self.order = VictimOrder()

    def add(self, node: Any) -> None:
        if node not in self:
            super().add(node)
            self._enter(node)

    def discard(self, node: Any) -> None:
        if node in self:
            super().discard(node)
            self._leave(node)

    def rekey(self, node: Any) -> None:
        """The node is in the set, and its key may have changed. O(log n)."""
        if state_of(node).entry is not None:
            self._leave(node)
            self._enter(node)

    def give_up(self, error: Exception) -> None:
        """The order cannot be kept any longer."""
        self.broken = True
        self.order = VictimOrder()
        self._aside.clear()
        self._fault(error)

    def mend(self) -> None:
        """Build the order anew if it is `broken`; it may break again. O(n log n)."""
        if self.broken:
            self.broken = False
            for node in self:
                self._enter(node)

    def set_aside(self, node: Any) -> None:
        """Keep the node in the set and out of the order: it is not to be chosen."""
        self._leave(node)
        self._aside.append(node)

    def give_back(self) -> None:
        """End what `set_aside` did."""
        for node in self._aside:
            if node in self and state_of(node).entry is None:
                self._enter(node)
        self._aside.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless the order holds every member with its key."""
        entries = list(self.order)
        assert len(entries) == len(self), "a leaf is missing from the order"
        assert entries == sorted(self._entry_of(node) for node in self), "stale key"
        for entry in entries:
            assert state_of(entry[-1]).entry is entry, "an entry that its node lost"

    def _enter(self, node: Any) -> None:
        if self.broken:
            return
        try:
            entry = state_of(node).entry = self._entry_of(node)
            self.order.add(entry)
        except Exception as error:
            self.give_up(error)

    def _leave(self, node: Any) -> None:
        state = state_of(node)
        entry, state.entry = state.entry, None
        if entry is not None and not self.broken:
            try:
                self.order.remove(entry)
            except Exception as error:
                self.give_up(error)


class Writers:
    """Who wrote which node: found by run when it ends, by agent when it executes."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], dict[str, Writer]] = {}

    def of(self, owner: Owner) -> Writer:
        """The one `Writer` of `owner`."""
        client, run, agent = (sys.intern(name) for name in owner)
        agents = self._runs.setdefault((client, run), {})
        writer = agents.get(agent)
        if writer is None:
            writer = agents[agent] = Writer(Owner(client, run, agent))
        return writer

    def assign(self, node: Any, writer: Writer | None) -> None:
        """`writer` wrote the node last; None: the node goes."""
        state = state_of(node)
        before, state.writer = state.writer, writer
        if before is writer:
            return
        if writer is not None:
            writer.nodes.add(node)
        if before is not None:
            before.nodes.discard(node)
            if not before.nodes:
                self._drop(before.owner)

    def of_run(self, client: str, run: str) -> list[Any]:
        """The nodes that a run's agents wrote last."""
        agents = self._runs.get((client, run), {})
        return [node for writer in agents.values() for node in writer.nodes]

    def of_call(self, client: str, run: str, agent: str) -> Iterable[Any]:
        writer = self._runs.get((client, run), {}).get(agent)
        return writer.nodes if writer is not None else ()

    def by_client(self) -> Iterator[tuple[str, Any]]:
        """Every (client, node it wrote last)."""
        for (client, _run), agents in self._runs.items():
            for writer in agents.values():
                for node in writer.nodes:
                    yield client, node

    def clear(self) -> None:
        self._runs.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless nodes and writers point at each other."""
        for names, agents in self._runs.items():
            assert agents, f"nothing left of {names}"
            for agent, writer in agents.items():
                assert writer.owner == (*names, agent)
                assert writer.nodes, f"no node left of {writer.owner}"
                for node in writer.nodes:
                    assert state_of(node).writer is writer, "a node of another writer"

    def _drop(self, owner: Owner) -> None:
        agents = self._runs[owner.client, owner.run]
        del agents[owner.agent]
        if not agents:
            del self._runs[owner.client, owner.run]
