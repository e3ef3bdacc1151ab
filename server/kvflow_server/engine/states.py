"""The state of a node's KV, read off SGLang's tree and KVFlow's stamps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvflow_server.policy.states import KVState

from .tree import KVFlowTreeCore, state_of

__all__ = ["kv_state", "look_at_all", "read_early"]


def kv_state(node: Any) -> KVState:
    """The one place that says it."""
    if node.evicted:
        return KVState.BACKED_UP
    if state_of(node).load is not None:
        return KVState.LOADING
    if node.write_through_pending_id is not None:
        return KVState.OFFLOADING
    return KVState.IN_GPU


def look_at_all(tree: KVFlowTreeCore) -> None:
    """Show every node to the tree's ledger; AssertionError naming what it minds."""
    ledger = tree.ledger
    if ledger is None:
        return
    for node in tree.nodes():
        ledger.see(node.id, kv_state(node))
    assert not ledger.violations, "; ".join(ledger.violations)


def read_early(tree: KVFlowTreeCore, requests: Iterable[Any]) -> None:
    """AssertionError if a request that runs has a prefix that is not all there.

    A batch that waits for a copy layer by layer has ended LOADING by joining it.
    """
    for req in requests:
        node = tree.find_node(req.last_node)
        for step in tree.path_to_root(node) if node is not None else ():
            assert kv_state(step) is not KVState.LOADING, (
                f"request {req.rid} reads node {step.id} while it is LOADING"
            )
