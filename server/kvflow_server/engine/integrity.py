"""KVFlow's invariants on the tree, checked by computing everything anew. O(tree)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.component_type import BASE_COMPONENT_TYPE

from kvflow_server.policy.priority import prompt_rank

from .node import PromptHandle, state_of

if TYPE_CHECKING:
    from .tree import KVFlowTreeCore

__all__ = ["check_tree"]


def check_tree(tree: KVFlowTreeCore) -> None:
    """Raise AssertionError with what is wrong."""
    nodes = [node for node in tree._node_arena.values() if node is not tree.root_node]
    below: dict[Any, list[PromptHandle]] = {}
    for node in nodes:
        for handle in state_of(node).ends:
            assert handle.node is node, "a handle that points elsewhere"
            assert tree.depth_of(node) == handle.tokens, "a prompt of another length"
            assert handle.rank == prompt_rank(
                tree.table, tree.order, handle.client, handle.agent
            ), "a prompt's rank is not what the table says"
            for step in tree.path_to_root(node):
                below.setdefault(step, []).append(handle)
    held: Counter[str] = Counter()
    for node in nodes:
        _check_node(node, below.get(node, []))
        state = state_of(node)
        if state.payer is not None:
            held[state.payer] += state.charged
    assert held == tree.protection.held, "a client's protected tokens are off"
    over = {client for client, tokens in held.items() if tokens > tree.protection.cap}
    assert over == tree.protection.over.keys(), "who holds too much is off"
    tree.evictable_device_leaves.check_integrity()
    tree.evictable_host_leaves.check_integrity()
    tree.writers.check_integrity()


def _check_node(node: Any, handles: list[PromptHandle]) -> None:
    state = state_of(node)
    clients = Counter(handle.client for handle in handles)
    if state.subtree is None:
        assert not handles, "a prompt that its path does not count"
    else:
        ranks = Counter(handle.rank for handle in handles)
        assert state.subtree.counts() == (clients, ranks), "prompts counted wrong"
    sole = next(iter(clients)) if len(clients) == 1 and not node.evicted else None
    assert state.payer == sole, "another client's tokens"
    assert state.charged == (len(node.key) if sole is not None else 0)
    if state.writer is not None:
        assert node in state.writer.nodes, "a writer that does not know its node"
    if state.load is not None:
        data = node.component_data[BASE_COMPONENT_TYPE]
        assert data.value is not None, "LOADING without device slots"
        assert data.lock_ref > 0, "LOADING but evictable"
