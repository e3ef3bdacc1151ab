"""The fixed prompts that the tree holds, by client and agent, and how near they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from kvflow_server.policy.priority import prompt_rank

from .node import PromptHandle
from .order import TreeOrder

__all__ = ["PromptRegistry"]


class PromptRegistry:
    """(client, agent) -> its prompts. An agent may own several: a node that calls a
    model with two prompts has two boundaries, not drift.

    It also carries what clients say on to the tree (`settle`).
    """

    def __init__(
        self, tree: TreeOrder, prompts_per_agent: int, agents_per_client: int
    ) -> None:
        self._tree = tree
        self._cap = prompts_per_agent
        self._agents = agents_per_client
        self._clients: dict[str, dict[str, list[PromptHandle]]] = {}
        """Most recent prompt last."""
        self._changes = tree.table.watch()
        self.version = 0
        """Grows whenever a prompt appears, moves or goes."""
        self.on_last_gone: Callable[[str, str], None] | None = None
        """Told of every (client, agent) that no longer owns a prompt."""
        tree.prompt_gone = self._forget
        tree.settle = self.settle

    def record(
        self, client: str, agent: str, digest: int, tokens: int, node: Any
    ) -> None:
        """A prompt of (client, agent) ends at `node`; the oldest over a cap goes."""
        client, agent = sys.intern(client), sys.intern(agent)
        agents = self._clients.setdefault(client, {})
        owned = agents[agent] = agents.pop(agent, [])
        known = next((handle for handle in owned if handle.digest == digest), None)
        if known is not None:
            owned.remove(known)
            if known.node is node:
                owned.append(known)
                return
            self._tree.detach(known)
        rank = prompt_rank(self._tree.table, self._tree.order, client, agent)
        handle = PromptHandle(client, agent, digest, tokens, node, rank)
        owned.append(handle)
        self._tree.attach(handle)
        while len(owned) > self._cap:
            self._tree.detach(owned.pop(0))
        while len(agents) > self._agents:
            oldest = next(iter(agents))
            for left in agents.pop(oldest):
                self._tree.detach(left)
            self._told_gone(client, oldest)
        self.version += 1

    def release(self, handle: PromptHandle) -> None:
        """The prompt ends elsewhere; its nodes stay."""
        self._tree.detach(handle)
        self._forget(handle)

    def settle(self) -> None:
        """Bring the tree's order up to date with what clients have said. O(changed
        agents · depth); nothing to do costs nothing."""
        changes = self._changes
        if not changes:
            return
        stale: dict[Any, None] = {}
        for client in changes.clients:
            for agent in self._clients.get(client, ()):
                self._rerank(client, agent, stale)
        for client, agent in changes.agents:
            self._rerank(client, agent, stale)
        writers = self._tree.writers
        for client, run in changes.runs:
            stale.update(dict.fromkeys(writers.of_run(client, run)))
        for client, run, agent in changes.calls:
            stale.update(dict.fromkeys(writers.of_call(client, run, agent)))
        changes.clear()
        for node in stale:
            self._tree.rekey(node)

    def _rerank(self, client: str, agent: str, stale: dict[Any, None]) -> None:
        owned = self._clients.get(client, {}).get(agent)
        if owned:
            rank = prompt_rank(self._tree.table, self._tree.order, client, agent)
            for handle in owned:
                self._tree.rerank(handle, rank, stale)

    def handles(self, client: str, agent: str) -> list[PromptHandle]:
        """The agent's prompts, most recent last."""
        return list(self._clients.get(client, {}).get(agent, ()))

    def agents(self) -> Iterator[tuple[str, str]]:
        """Every (client, agent) that has a prompt in the tree."""
        for client, agents in self._clients.items():
            for agent in agents:
                yield client, agent

    def clients(self) -> Iterator[str]:
        """Every client that has a prompt in the tree."""
        return iter(self._clients)

    def drop_client(self, client: str) -> None:
        """The client's lease has ended: its prompts are ordinary cache entries."""
        for agent, owned in self._clients.pop(client, {}).items():
            for handle in owned:
                self._tree.detach(handle)
            self._told_gone(client, agent)
            self.version += 1

    def clear(self) -> None:
        """The tree was reset: every node is gone."""
        for agents in self._clients.values():
            for owned in agents.values():
                for handle in owned:
                    handle.node = None
        self._clients.clear()
        self.version += 1

    def __len__(self) -> int:
        return sum(len(o) for a in self._clients.values() for o in a.values())

    def _forget(self, handle: PromptHandle) -> None:
        """The handle's node has left the tree."""
        agents = self._clients[handle.client]
        agents[handle.agent].remove(handle)
        if not agents[handle.agent]:
            del agents[handle.agent]
            self._told_gone(handle.client, handle.agent)
        if not agents:
            del self._clients[handle.client]
        self.version += 1

    def _told_gone(self, client: str, agent: str) -> None:
        if self.on_last_gone is not None:
            self.on_last_gone(client, agent)
