"""The full-attention component: eviction that stops at a ceiling.

`load_back` evicts whatever it takes to make room. For an on-demand load that is right;
a prefetch may displace only what comes earlier in the eviction order than what it
brings in. The ceiling says where to stop.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from kvflow_server.policy.priority import EvictionKey
from kvflow_server.policy.states import KVState

from .states import kv_state
from .tree import KVFlowTreeCore, state_of

__all__ = ["KVFlowFullComponent"]


class KVFlowFullComponent(FullComponent):
    """`FullComponent` with an eviction ceiling and prefetch accounting."""

    tree_core: KVFlowTreeCore
    _ceiling: EvictionKey | None = None
    _evict_device_last_node: Any

    def __init__(self, cache: Any, params: Any) -> None:
        super().__init__(cache, params)
        self.unused_prefetches: list[tuple[str, int]] = []
        """(client, tokens) of prefetched nodes evicted before anyone used them."""

    @contextmanager
    def evict_below(self, ceiling: EvictionKey) -> Iterator[None]:
        """Within the block, evict from the device only nodes ordered before it."""
        self._ceiling = ceiling
        try:
            yield
        finally:
            self._ceiling = None

    def _evict_device_next_node(
        self,
        tracker: dict[Any, int],
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        cache_actions: list[Any],
    ) -> int | None:
        """As in `FullComponent`, but never past the ceiling."""
        leaves = self.tree_core.evictable_device_leaves
        heap = self._evict_device_heap
        last, self._evict_device_last_node = self._evict_device_last_node, None
        if last is not None and last.parent in leaves:
            key = self.session_ref_eviction_strategy(last.parent)
            heapq.heappush(heap, (key, last.parent))
        while heap and tracker[self.component_type] < self._evict_device_request_cnt:
            key, node = heap[0]
            if node in leaves and self._ceiling is not None and key >= self._ceiling:
                return None
            heapq.heappop(heap)
            if node in leaves:
                self._evict_device_last_node = node
                victim: int = node.id
                return victim
        return None

    def evict_component(
        self,
        node: Any,
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        cache_actions: list[Any],
        target: EvictLayer = EvictLayer.DEVICE,
    ) -> tuple[int, int]:
        state = state_of(node)
        ledger = self.tree_core.ledger
        if ledger is not None:
            ledger.see(node.id, kv_state(node))
        freed: tuple[int, int] = super().evict_component(
            node, device_frees, host_frees, cache_actions, target
        )
        if ledger is not None and freed[0] and node.backuped:
            ledger.see(node.id, KVState.BACKED_UP)
        if state.prefetched is not None and freed[0]:
            self.unused_prefetches.append((state.prefetched, freed[0]))
            state.prefetched = None
        return freed
