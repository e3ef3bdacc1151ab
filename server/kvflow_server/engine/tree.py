"""The radix tree core: SGLang's Python `UnifiedTreeCore` that knows fixed prompts.

Every node carries a `NodeState`: the prompts (handles) that end in its subtree, who
wrote it, and the copy it is waiting for. Nodes are born in `_new_node`, split in
`_split_node`, and die in `_remove_leaf_from_parent` or `reset`; they never merge, so
these four are all the places that keep the state right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang.srt.mem_cache.evict_policy import EvictionStrategy
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import (
    UnifiedTreeCore,
    UnifiedTreeNode,
)

from kvflow_server.policy.priority import EvictionKey, Owner, eviction_key
from kvflow_server.policy.states import StateLedger
from kvflow_server.policy.steps import StepTable

__all__ = ["KVFlowTreeCore", "LoadOperation", "NodeState", "PromptHandle", "state_of"]


class LoadOperation:
    """One host-to-device copy in flight that KVFlow started. Compared by identity."""

    __slots__ = ("anchor", "joined", "producer", "tokens")

    def __init__(self, anchor: int, producer: int, tokens: int) -> None:
        self.anchor = anchor
        """Node id under which SGLang acknowledges the copy."""
        self.producer = producer
        """Index of the layer events that a batch waits on to join the copy."""
        self.tokens = tokens
        self.joined = False


class PromptHandle:
    """One fixed prompt of one (client, agent), and the node it ends at."""

    __slots__ = ("agent", "client", "digest", "node", "tokens")

    def __init__(
        self, client: str, agent: str, digest: int, tokens: int, node: Any
    ) -> None:
        self.client = client
        self.agent = agent
        self.digest = digest
        """Hash of the prompt's tokens and namespace; tells prompts apart."""
        self.tokens = tokens
        self.node = node


class NodeState:
    """What KVFlow knows of one node."""

    __slots__ = ("handles", "load", "owner", "prefetched")

    def __init__(self) -> None:
        self.handles: dict[PromptHandle, None] = {}
        """Prompts that end in the node's subtree, the node itself included."""
        self.owner: Owner | None = None
        self.load: LoadOperation | None = None
        """Set while the device slots are still being written: LOADING."""
        self.prefetched: str | None = None
        """The client whose prefetch brought the node in and has not used it yet."""


def state_of(node: Any) -> NodeState:
    state: NodeState = node.kvflow
    return state


class WorkflowStrategy(EvictionStrategy):
    """SGLang's eviction strategy interface over `policy.priority`."""

    def __init__(self, table: StepTable) -> None:
        self.table = table

    def get_priority(self, node: Any) -> EvictionKey:
        state = state_of(node)
        return eviction_key(
            self.table,
            {(handle.client, handle.agent) for handle in state.handles},
            state.owner,
            node.last_access_time,
        )


class KVFlowTreeCore(UnifiedTreeCore):
    """`UnifiedTreeCore` with fixed-prompt handles on its nodes."""

    suffix_backup_hits = 1
    writing_suffix = False
    """Set while the dynamic suffix of a tagged request is being inserted."""
    ledger: StateLedger | None = None
    """In debug mode: what becomes of every node's state."""

    def use_workflow_order(self, table: StepTable) -> None:
        """Order eviction by the workflow instead of the configured policy."""
        self.eviction_strategy = WorkflowStrategy(table)

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = super()._new_node(priority=priority)
        node.kvflow = NodeState()
        return node

    def _split_node(
        self, key: RadixKey, child: UnifiedTreeNode, split_len: int
    ) -> tuple[UnifiedTreeNode, Any]:
        # The handle stays on the child, whose end is still the prompt's end; the new
        # parent has the same subtree below it.
        new_node, action = super()._split_node(key, child, split_len)
        old, new = state_of(child), state_of(new_node)
        new.handles = dict(old.handles)
        new.owner = old.owner
        new.load = old.load
        new.prefetched = old.prefetched
        if self.ledger is not None:
            self.ledger.split(child.id, new_node.id)
        return new_node, action

    def _remove_leaf_from_parent(self, node: UnifiedTreeNode) -> None:
        super()._remove_leaf_from_parent(node)
        if self.ledger is not None:
            self.ledger.leave(node.id)
        for handle in list(state_of(node).handles):
            self.detach(handle)

    def _inc_hit_count_and_check(self, node: UnifiedTreeNode) -> bool:
        wanted = super()._inc_hit_count_and_check(node)
        if wanted and self.writing_suffix and not state_of(node).handles:
            return bool(node.hit_count >= self.suffix_backup_hits)
        return wanted

    def attach(self, handle: PromptHandle) -> None:
        """Put the handle on its node and on every node above. O(depth)."""
        node = handle.node
        while node is not self.root_node:
            state_of(node).handles[handle] = None
            node = node.parent

    def detach(self, handle: PromptHandle) -> None:
        """Take the handle off its node and every node above; its node may be gone."""
        node, handle.node = handle.node, None
        while node is not None and node is not self.root_node:
            state_of(node).handles.pop(handle, None)
            node = node.parent

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

    def missing_boundaries(self, key: RadixKey, cuts: Sequence[int]) -> list[int]:
        """Those of `cuts` (tokens, ascending) at which no node on `key`'s path ends."""
        ends = set()
        end = 0
        for node in self.walk(key):
            end += len(node.key)
            ends.add(end)
        return [cut for cut in cuts if cut not in ends]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every handle stands exactly on its root path."""
        expected: dict[int, set[int]] = {}
        for node in self._node_arena.values():
            for handle in state_of(node).handles:
                assert handle.node is not None, "a detached handle is still on a node"
                assert handle.node.id in self._node_arena, "handle on a dead node"
                expected.setdefault(id(handle), set()).add(node.id)
        for node in self._node_arena.values():
            for handle in state_of(node).handles:
                path = {step.id for step in self.path_to_root(handle.node)}
                assert path == expected[id(handle)], "handle strays from its path"
                assert self.depth_of(handle.node) == handle.tokens
            load = state_of(node).load
            if load is not None:
                data = node.component_data[BASE_COMPONENT_TYPE]
                assert data.value is not None, "LOADING without device slots"
                assert data.lock_ref > 0, "LOADING but evictable"
