"""The order in which a tree gives its nodes up, kept up to date as things change.

The half of the tree core that does not depend on SGLang: which fixed prompts end where,
who wrote what, and the leaves of both tiers in the order of their keys. SGLang's tree
(`tree.KVFlowTreeCore`) and the simulator's stand on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvflow_server.policy.priority import (
    EvictionKey,
    Order,
    Owner,
    Rank,
    Use,
    suffix_rank,
)
from kvflow_server.policy.steps import StepTable
from kvflow_server.policy.victims import Entry, Protection, Subtree

from .index import LeafSet, Writers
from .node import PromptHandle, state_of

__all__ = ["TreeOrder"]


class TreeOrder:
    """What KVFlow adds to a radix tree. A node has `kvflow` (`NodeState`), `id`, `key`
    (as long as its tokens), `parent`, `children`, `evicted` and `last_access_time`."""

    root_node: Any
    evictable_device_leaves: LeafSet
    evictable_host_leaves: LeafSet

    def __init__(self) -> None:
        self.table = StepTable()
        self.order = Order.RECENCY
        self.protection = Protection()
        self.writers = Writers()
        self.prompt_gone: Callable[[PromptHandle], None] = lambda handle: None
        """Called when a prompt's node has left the tree."""
        self.settle: Callable[[], None] = lambda: None
        """Called before victims are chosen: brings keys up to date with the table."""
        self.fault: Callable[[Exception], None] = _raise
        """Called with what fails in here while the tree's owner is at work on it."""

    def locked(self, node: Any) -> bool:
        """Whether a request or a copy needs the node on the device."""
        raise NotImplementedError

    def use_order(self, table: StepTable, order: Order, cap: float) -> None:
        """Order eviction so; `cap` tokens of a client are protected at most. To be
        called while the tree is empty."""
        self.table, self.order = table, order
        self.protection = Protection(cap)

    def rank_of(self, node: Any) -> Rank:
        state = state_of(node)
        if state.subtree is not None:
            return state.subtree.nearest
        return suffix_rank(self.table, self.order, state.owner, state.use)

    def leaf_set(self) -> LeafSet:
        """An empty one, in this order."""
        return LeafSet(self.entry_of, lambda error: self.fault(error))

    def entry_of(self, node: Any) -> Entry:
        """The node's place in the order, whether it is in it or not."""
        subtree = state_of(node).subtree
        client = subtree.client if subtree is not None else None
        rank = self.rank_of(node)
        return (*rank, node.last_access_time, node.id, client, node)

    def rekey(self, node: Any) -> None:
        """What the node's key depends on has changed. O(log leaves)."""
        if state_of(node).entry is not None:
            if node in self.evictable_device_leaves:
                self.evictable_device_leaves.rekey(node)
            else:
                self.evictable_host_leaves.rekey(node)

    def charge(self, node: Any) -> None:
        """Count the node's tokens for the one client whose prompts need it, if it is
        on the device."""
        state = state_of(node)
        payer, tokens = None, 0
        if state.subtree is not None and not node.evicted:
            payer = state.subtree.client
            tokens = len(node.key) if payer is not None else 0
        if payer == state.payer:
            if tokens != state.charged and payer is not None:
                self.protection.change(payer, tokens - state.charged)
        else:
            if state.payer is not None:
                self.protection.change(state.payer, -state.charged)
            if payer is not None:
                self.protection.change(payer, tokens)
        state.payer, state.charged = payer, tokens

    # Prompts and writers.

    def attach(self, handle: PromptHandle) -> None:
        """Put the handle on its node and count it on every node above. O(depth)."""
        state_of(handle.node).add_end(handle)
        for node in self.path_to_root(handle.node):
            state = state_of(node)
            if state.subtree is None:
                state.subtree = Subtree(handle.client, handle.rank)
            else:
                state.subtree.add(handle.client, handle.rank)
            self.charge(node)
            self.rekey(node)

    def detach(self, handle: PromptHandle) -> None:
        """Take the handle off its node and every node above; its node may be gone."""
        end, handle.node = handle.node, None
        if end is None:
            return
        state_of(end).drop_end(handle)
        for node in self.path_to_root(end):
            state = state_of(node)
            assert state.subtree is not None
            if state.subtree.remove(handle.client, handle.rank):
                state.subtree = None
            self.charge(node)
            self.rekey(node)

    def rerank(self, handle: PromptHandle, rank: Rank, stale: dict[Any, None]) -> None:
        """The prompt's rank is another one now. O(depth); the leaves whose key depends
        on it go to `stale`, to be rekeyed once."""
        old, handle.rank = handle.rank, rank
        node = handle.node
        if old == rank or node is None:
            return
        root = self.root_node
        while node is not root:
            state = node.kvflow
            state.subtree.move(old, rank)
            if state.entry is not None:
                stale[node] = None
            node = node.parent

    def note_use(self, node: Any, owner: Owner, *, found: bool) -> None:
        """A tagged request has written the node, which no fixed prompt needs, or has
        `found` it in the tree."""
        state = state_of(node)
        if state.writer is None:
            state.use = Use.FOREIGN if found else Use.OWN
        elif state.writer.owner[:2] != owner[:2]:
            state.use = Use.SHARED
        self.writers.assign(node, self.writers.of(owner))
        self.rekey(node)

    # Victims.

    def next_victim(
        self, ceiling: EvictionKey | None, beneficiary: str | None
    ) -> Entry | None:
        """The leaf that leaves the device next; None if none goes before `ceiling`.

        `beneficiary` is the client that room is made for.
        """
        leaves = self.evictable_device_leaves
        entry = leaves.order.first(self.protection, beneficiary)
        if entry is None or (ceiling is not None and entry >= ceiling):
            return None
        return entry

    def displaceable(self, ceiling: EvictionKey, beneficiary: str, enough: int) -> int:
        """Tokens that eviction below `ceiling` would free, counted up to `enough`.

        Evicts nothing: a prefetch that does not fit must not cost anyone anything.
        """
        self.settle()
        freed = 0
        gone: set[int] = set()
        for entry in self.evictable_device_leaves.order:
            if freed >= enough or entry >= ceiling:
                break
            node = entry[-1]
            while freed < enough and self.entry_of(node) < ceiling:
                freed += len(node.key)
                gone.add(node.id)
                node = node.parent
                if not self._becomes_leaf(node, gone):
                    break
        return freed + self._excess_of_others(beneficiary, ceiling, enough - freed)

    def _excess_of_others(
        self, beneficiary: str, ceiling: EvictionKey, enough: int
    ) -> int:
        """The same of what clients hold above their shares."""
        freed = 0
        for client, excess in self.protection.excesses():
            if freed >= enough:
                break
            if client == beneficiary:
                continue
            wanted = min(excess, enough - freed)
            for entry in self.evictable_device_leaves.order.of(client):
                if wanted <= 0:
                    break
                if entry >= ceiling:  # the others are counted already
                    tokens = min(len(entry[-1].key), wanted)
                    freed, wanted = freed + tokens, wanted - tokens
        return freed

    def _becomes_leaf(self, node: Any, gone: set[int]) -> bool:
        """Whether eviction may go on with `node` once the nodes `gone` are evicted."""
        return (
            node.parent is not None
            and not self.locked(node)
            and all(c.evicted or c.id in gone for c in node.children.values())
        )

    # Reading.

    def path_to_root(self, node: Any) -> Iterator[Any]:
        """The node and its ancestors, deepest first, without the root."""
        while node is not self.root_node:
            yield node
            assert node.parent is not None
            node = node.parent

    def unlocked_above(self, node: Any) -> int:
        """Tokens above the node that are on the device and locked by nobody."""
        return sum(
            len(step.key)
            for step in self.path_to_root(node.parent)
            if not (step.evicted or self.locked(step))
        )

    def depth_of(self, node: Any) -> int:
        """Tokens from the root to the node's end."""
        return sum(len(step.key) for step in self.path_to_root(node))


def _raise(error: Exception) -> None:
    raise error
