"""The radix tree core: SGLang's Python `UnifiedTreeCore` that knows fixed prompts.

Every node carries a `NodeState`: the prompts (handles) that end in its subtree, who
wrote it, and the copy it is waiting for. Nodes are born in `_new_node`, split in
`_split_node`, and die in `_remove_leaf_from_parent` or `reset`; they never merge, so
these four are all the places that keep the state right.

The evictable leaves of both tiers are kept in the order of their keys (`LeafSet`). A
leaf's key changes when it is touched, when it changes hands, and when what the client
says about its prompts changes; each of these rekeys the leaf on the spot.

SGLang is in the midst of its own work when it calls the methods here, so what fails in
KVFlow's part of them goes to `fault` and no further. Not by a `with`: some of them run
for every node that a request touches, and a `try` costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
    UnifiedTreeCore,
    UnifiedTreeNode,
)

from kvflow_server.policy.states import StateLedger
from kvflow_server.policy.victims import Protection

from .index import Writers
from .integrity import check_tree
from .node import LoadOperation, NodeState, PromptHandle, state_of
from .order import TreeOrder

__all__ = ["KVFlowTreeCore", "LoadOperation", "NodeState", "PromptHandle", "state_of"]


class KVFlowTreeCore(TreeOrder, UnifiedTreeCore):
    """`UnifiedTreeCore` with fixed prompts on its nodes and its leaves in order."""

    suffix_hits: float = 1
    """While the suffix of a tagged request is being inserted: uses after which it goes
    to host memory. 1 is at once, as everything else does."""
    ledger: StateLedger | None = None
    """In debug mode: what becomes of every node's state."""

    def __init__(self, params: Any, components: Any) -> None:
        TreeOrder.__init__(self)
        UnifiedTreeCore.__init__(self, params, components)

    def locked(self, node: UnifiedTreeNode) -> bool:
        return bool(node.component_data[BASE_COMPONENT_TYPE].lock_ref)

    def reset(self) -> None:
        super().reset()
        self.evictable_device_leaves = self.leaf_set()
        self.evictable_host_leaves = self.leaf_set()
        self.protection = Protection(self.protection.cap)
        self.writers = Writers()

    # The order of the leaves.

    def _touch_node(self, node: UnifiedTreeNode) -> None:
        super()._touch_node(node)
        try:
            self.rekey(node)
        except Exception as error:
            self.fault(error)

    def _match_post_processor(
        self, params: Any, value: Any, best_match_node: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = super()._match_post_processor(
            params, value, best_match_node, *args, **kwargs
        )
        try:
            for node in self.path_to_root(best_match_node):
                self.rekey(node)
        except Exception as error:
            self.fault(error)
        return result

    def _update_evictable_leaf_sets(self, node: UnifiedTreeNode) -> None:
        # A node has one place in one order, so it leaves the one before it enters the
        # other; SGLang's own order of doing so is the reverse on the way up.
        if node in self.evictable_host_leaves and not node.evicted:
            self.evictable_host_leaves.discard(node)
        super()._update_evictable_leaf_sets(node)
        try:
            self.charge(node)
        except Exception as error:
            self.fault(error)

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
        try:
            state_of(new_node).inherit(state_of(child))
            self.writers.assign(new_node, state_of(child).writer)
            self.charge(new_node)
            self.rekey(child)
            if self.ledger is not None:
                self.ledger.split(child.id, new_node.id)
        except Exception as error:
            self.fault(error)
        return new_node, action

    def _remove_leaf_from_parent(self, node: UnifiedTreeNode) -> None:
        super()._remove_leaf_from_parent(node)
        try:
            if self.ledger is not None:
                self.ledger.leave(node.id)
            for handle in list(state_of(node).ends):
                self.detach(handle)
                self.prompt_gone(handle)
            self.writers.assign(node, None)
        except Exception as error:
            self.fault(error)

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
