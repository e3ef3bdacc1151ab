"""The radix tree core: SGLang's Python `UnifiedTreeCore` that knows fixed prompts.

Every node carries a `NodeState`: the prompts (handles) that end in its subtree, who
wrote it, and the copy it is waiting for. Nodes are born in `_new_node`, split in
`_split_node`, and die in `_remove_leaf_from_parent` or `reset`; they never merge, so
these four are all the places that keep the state right.

The evictable leaves of both tiers are kept in the order of their keys (`LeafSet`). A
leaf's key changes when it is touched, when it changes hands, and when what the client
says about its prompts changes; each of these rekeys the leaf on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
    UnifiedTreeCore,
    UnifiedTreeNode,
)

from kvflow_server.policy.priority import Order, Owner, Rank, Use, suffix_rank
from kvflow_server.policy.states import StateLedger
from kvflow_server.policy.steps import StepTable
from kvflow_server.policy.victims import Entry, Protection, Subtree

from .index import LeafSet, Writers
from .integrity import check_tree
from .node import LoadOperation, NodeState, PromptHandle, state_of

__all__ = ["KVFlowTreeCore", "LoadOperation", "NodeState", "PromptHandle", "state_of"]


class KVFlowTreeCore(UnifiedTreeCore):
    """`UnifiedTreeCore` with fixed prompts on its nodes and its leaves in order."""

    evictable_device_leaves: LeafSet
    evictable_host_leaves: LeafSet
    suffix_hits: float = 1
    """While the suffix of a tagged request is being inserted: uses after which it goes
    to host memory. 1 is at once, as everything else does."""
    ledger: StateLedger | None = None
    """In debug mode: what becomes of every node's state."""

    def __init__(self, params: Any, components: Any) -> None:
        self.table = StepTable()
        self.order = Order.RECENCY
        self.protection = Protection()
        self.writers = Writers()
        self.prompt_gone: Callable[[PromptHandle], None] = lambda handle: None
        """Called when a prompt's node has left the tree."""
        self.settle: Callable[[], None] = lambda: None
        """Called before victims are chosen: brings keys up to date with the table."""
        super().__init__(params, components)

    def use_order(self, table: StepTable, order: Order, cap: float) -> None:
        """Order eviction so; `cap` tokens of a client are protected at most. To be
        called while the tree is empty."""
        self.table, self.order = table, order
        self.protection = Protection(cap)

    def reset(self) -> None:
        super().reset()
        self.evictable_device_leaves = LeafSet(self.entry_of)
        self.evictable_host_leaves = LeafSet(self.entry_of)
        self.protection.clear()
        self.writers.clear()

    # The order of the leaves.

    def rank_of(self, node: UnifiedTreeNode) -> Rank:
        state = state_of(node)
        if state.subtree is not None:
            return state.subtree.nearest
        return suffix_rank(self.table, self.order, state.owner, state.use)

    def entry_of(self, node: UnifiedTreeNode) -> Entry:
        """The node's place in the order, whether it is in it or not."""
        subtree = state_of(node).subtree
        client = subtree.client if subtree is not None else None
        rank = self.rank_of(node)
        return (*rank, node.last_access_time, node.id, client, node)

    def rekey(self, node: UnifiedTreeNode) -> None:
        """What the node's key depends on has changed. O(log leaves)."""
        if state_of(node).entry is not None:
            if node in self.evictable_device_leaves:
                self.evictable_device_leaves.rekey(node)
            else:
                self.evictable_host_leaves.rekey(node)

    def _touch_node(self, node: UnifiedTreeNode) -> None:
        super()._touch_node(node)
        self.rekey(node)

    def _match_post_processor(
        self, params: Any, value: Any, best_match_node: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = super()._match_post_processor(
            params, value, best_match_node, *args, **kwargs
        )
        for node in self.path_to_root(best_match_node):
            self.rekey(node)
        return result

    def _update_evictable_leaf_sets(self, node: UnifiedTreeNode) -> None:
        # A node has one place in one order, so it leaves the one before it enters the
        # other; SGLang's own order of doing so is the reverse on the way up.
        if node in self.evictable_host_leaves and not node.evicted:
            self.evictable_host_leaves.discard(node)
        super()._update_evictable_leaf_sets(node)
        self._charge(node)

    def _charge(self, node: UnifiedTreeNode) -> None:
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

    # Birth, split and death of nodes.

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = super()._new_node(priority=priority)
        node.kvflow = NodeState()
        return node

    def _split_node(
        self, key: RadixKey, child: UnifiedTreeNode, split_len: int
    ) -> tuple[UnifiedTreeNode, Any]:
        # The prompt stays on the child, whose end is still the prompt's end; the new
        # parent has the same subtree below it.
        new_node, action = super()._split_node(key, child, split_len)
        state_of(new_node).inherit(state_of(child))
        self.writers.assign(new_node, state_of(child).writer)
        self._charge(new_node)
        self.rekey(child)
        if self.ledger is not None:
            self.ledger.split(child.id, new_node.id)
        return new_node, action

    def _remove_leaf_from_parent(self, node: UnifiedTreeNode) -> None:
        super()._remove_leaf_from_parent(node)
        if self.ledger is not None:
            self.ledger.leave(node.id)
        for handle in list(state_of(node).ends):
            self.detach(handle)
            self.prompt_gone(handle)
        self.writers.assign(node, None)

    def commit_load_back(
        self, node_id: int, device_indices: Any, kv_xfer: Any, comp_xfers: Any
    ) -> list[Any]:
        actions: list[Any] = super().commit_load_back(
            node_id, device_indices, kv_xfer, comp_xfers
        )
        # SGLang tracks what is in both memories from the acknowledgement on, and its
        # own `sanity_check` wants it from here on; it only ever checks when idle.
        for loaded in kv_xfer.nodes_to_load or ():
            self._update_duplicate_tracking(self.node_by_id(loaded))
        return actions

    def _inc_hit_count_and_check(self, node: UnifiedTreeNode) -> bool:
        wanted = super()._inc_hit_count_and_check(node)
        if wanted and self.suffix_hits > 1 and not state_of(node).fixed:
            return bool(node.hit_count >= self.suffix_hits)
        return wanted

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
            self._charge(node)
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
            self._charge(node)
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

    def note_use(self, node: UnifiedTreeNode, owner: Owner, *, found: bool) -> None:
        """A tagged request has written the node, which no fixed prompt needs, or has
        `found` it in the tree."""
        state = state_of(node)
        if state.writer is None:
            state.use = Use.FOREIGN if found else Use.OWN
        elif state.writer.owner[:2] != owner[:2]:
            state.use = Use.SHARED
        self.writers.assign(node, self.writers.of(owner))
        self.rekey(node)

    # Reading.

    @property
    def nodes_born(self) -> int:
        """Nodes ever made in this process; it only grows."""
        return int(UnifiedTreeNode.counter)

    def find_node(self, node_id: int) -> UnifiedTreeNode | None:
        """The node, or None once it has left the tree."""
        return self._node_arena.get(node_id)

    def nodes(self) -> Iterator[UnifiedTreeNode]:
        """Every node but the root, in no particular order."""
        return (n for n in self._node_arena.values() if n is not self.root_node)

    def path_to_root(self, node: UnifiedTreeNode) -> Iterator[UnifiedTreeNode]:
        """The node and its ancestors, deepest first, without the root."""
        while node is not self.root_node:
            yield node
            assert node.parent is not None
            node = node.parent

    def depth_of(self, node: UnifiedTreeNode) -> int:
        """Tokens from the root to the node's end."""
        return sum(len(step.key) for step in self.path_to_root(node))

    def walk(self, key: RadixKey) -> Iterator[UnifiedTreeNode]:
        """The nodes that `key` (page-aligned) reaches, shallow first; the last may be
        matched in part only. Touches no recency and splits nothing."""
        node, offset = self.root_node, 0
        while offset < len(key):
            child = node.children.get(key.child_key_at(offset, self.page_size))
            if child is None:
                return
            matched = child.key.match_at(key, offset, page_size=self.page_size)
            if not matched:
                return
            yield child
            if matched < len(child.key):
                return
            node, offset = child, offset + matched

    def missing_boundaries(
        self, key: RadixKey, cuts: Sequence[int]
    ) -> tuple[int, list[int]]:
        """Tokens of `key` that the tree holds, and those of `cuts` (tokens, ascending)
        at which no node on its path ends."""
        ends = [0]
        last = None
        for last in self.walk(key):
            ends.append(ends[-1] + len(last.key))
        found = ends[-1]
        if last is not None:
            # Only the last node may have matched in part.
            found = ends[-2] + last.key.match_at(key, ends[-2], self.page_size)
        return found, [cut for cut in cuts if cut not in ends]

    def check_integrity(self) -> None:
        """Raise AssertionError unless everything that is kept is what it would be if it
        were computed now."""
        check_tree(self)
