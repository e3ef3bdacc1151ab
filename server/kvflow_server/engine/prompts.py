"""The fixed prompts that the tree holds, by (client, agent)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tree import KVFlowTreeCore, PromptHandle

__all__ = ["PromptRegistry"]


class PromptRegistry:
    """(client, agent) -> its prompts. An agent may own several: a node that calls a
    model with two prompts has two boundaries, not drift."""

    def __init__(self, tree: KVFlowTreeCore, prompts_per_agent: int) -> None:
        self._tree = tree
        self._cap = prompts_per_agent
        self._handles: dict[tuple[str, str], dict[int, PromptHandle]] = {}
        self.version = 0
        """Grows whenever a prompt appears, moves or goes."""

    def record(
        self, client: str, agent: str, digest: int, tokens: int, node: Any
    ) -> None:
        """A prompt of (client, agent) ends at `node`; the oldest over the cap goes."""
        owned = self._handles.setdefault((client, agent), {})
        handle = owned.pop(digest, None)
        if handle is not None and handle.node is node:
            owned[digest] = handle
            return
        if handle is not None:
            self._tree.detach(handle)
        handle = PromptHandle(client, agent, digest, tokens, node)
        owned[digest] = handle
        self._tree.attach(handle)
        while len(owned) > self._cap:
            self._tree.detach(owned.pop(next(iter(owned))))
        self.version += 1

    def handles(self, client: str, agent: str) -> list[PromptHandle]:
        """The agent's prompts that are still in the tree, most recent last."""
        owned = self._handles.get((client, agent), {})
        return [handle for handle in owned.values() if handle.node is not None]

    def agents(self) -> Iterator[tuple[str, str]]:
        return iter(self._handles)

    def forget_dead(self) -> None:
        """Drop the prompts whose nodes have left the tree."""
        for key, owned in list(self._handles.items()):
            for digest in [d for d, h in owned.items() if h.node is None]:
                del owned[digest]
            if not owned:
                del self._handles[key]

    def drop_client(self, client: str) -> None:
        """The client's lease has ended: its prompts are ordinary cache entries."""
        for key in [key for key in self._handles if key[0] == client]:
            for handle in self._handles.pop(key).values():
                self._tree.detach(handle)
            self.version += 1

    def clear(self) -> None:
        """The tree was reset: every node is gone."""
        for owned in self._handles.values():
            for handle in owned.values():
                handle.node = None
        self._handles.clear()
        self.version += 1

    def __len__(self) -> int:
        return sum(len(owned) for owned in self._handles.values())
