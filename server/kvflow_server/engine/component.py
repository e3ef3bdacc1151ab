"""The full-attention component: eviction in the order that the tree keeps.

SGLang's builds a heap over all leaves for each eviction; here the leaf sets are in
order already (`LeafSet`), so a victim costs O(log leaves) on either tier. Where that
order is `broken` and cannot be mended, SGLang's own way is gone.

`load_back` evicts whatever it takes to make room. For an on-demand load that is right;
a prefetch may displace only what comes earlier in the eviction order than what it
brings in. The ceiling says where to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.mem_cache.unified_cache.components.base import EvictLayer
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

from kvflow_server.policy.priority import EvictionClass, EvictionKey
from kvflow_server.policy.states import KVState
from kvflow_server.policy.victims import Entry

from .states import kv_state
from .tree import KVFlowTreeCore

__all__ = ["KVFlowFullComponent"]


class KVFlowFullComponent(FullComponent):
    """`FullComponent` with ordered leaves, a ceiling and prefetch accounting."""

    tree_core: KVFlowTreeCore
    _ceiling: EvictionKey | None = None
    _beneficiary: str | None = None
    _evict_device_last_node: Any = None
    _as_stock = False
    """The eviction under way goes by SGLang's order."""

    def __init__(self, cache: Any, params: Any) -> None:
        super().__init__(cache, params)
        self.on_evict: Callable[[Any, int], None] | None = None
        """Told of every node that leaves the device, and of its tokens."""
        self.evicted_tokens: dict[EvictionClass, int] = dict.fromkeys(EvictionClass, 0)
        """Device tokens evicted so far, by the class they went in."""

    @contextmanager
    def evict_below(
        self, ceiling: EvictionKey, beneficiary: str | None = None
    ) -> Iterator[None]:
        """Within the block, evict from the device only nodes ordered before it.

        `beneficiary` is the client that room is made for: nothing of its own is
        counted as more than its share.
        """
        self._ceiling, self._beneficiary = ceiling, beneficiary
        try:
            yield
        finally:
            self._ceiling = self._beneficiary = None

    def _evict_device_start(self, request_cnt: int) -> None:
        self.tree_core.settle()
        self.tree_core.evictable_device_leaves.mend()
        self._as_stock = False
        self._evict_device_request_cnt = request_cnt
        self._evict_device_last_node = None

    def displaceable(self, ceiling: EvictionKey, beneficiary: str, enough: int) -> int:
        """Tokens that `evict_below` would free, counted up to `enough`."""
        if self.tree_core.is_write_back:
            return 0  # evicting there waits for a copy to host memory
        return self.tree_core.displaceable(ceiling, beneficiary, enough)

    def _evict_device_next_node(
        self,
        tracker: dict[Any, int],
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        cache_actions: list[Any],
    ) -> int | None:
        """As in `FullComponent`, but in the tree's order and never past the ceiling."""
        leaves = self.tree_core.evictable_device_leaves
        if not self._as_stock:
            try:
                victim = self._next_in_order(tracker)
            except Exception as error:
                leaves.give_up(error)
            if not leaves.broken:
                return victim
            self._as_stock = True
            super()._evict_device_start(self._evict_device_request_cnt)
        if self._ceiling is not None:
            return None  # nothing is known to come before it
        stock: int | None = super()._evict_device_next_node(
            tracker, device_frees, host_frees, cache_actions
        )
        return stock

    def _next_in_order(self, tracker: dict[Any, int]) -> int | None:
        tree = self.tree_core
        leaves = tree.evictable_device_leaves
        last, self._evict_device_last_node = self._evict_device_last_node, None
        if last is not None and last in leaves:
            # It could not be evicted: SGLang does not try it twice either.
            leaves.set_aside(last)
        if tracker[self.component_type] >= self._evict_device_request_cnt:
            return None
        entry = tree.next_victim(self._ceiling, self._beneficiary)
        if entry is None:
            return None
        node = self._evict_device_last_node = entry[-1]
        self.evicted_tokens[entry[0]] += len(node.key)
        victim: int = node.id
        return victim

    def _evict_device_end(self) -> None:
        if self._as_stock:
            super()._evict_device_end()
        self._evict_device_last_node = None
        self.tree_core.evictable_device_leaves.give_back()

    def drive_host_eviction(
        self,
        num_tokens: int,
        tracker: dict[Any, int],
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        cache_actions: list[Any],
    ) -> None:
        """As in `FullComponent`, but in the tree's order."""
        self.tree_core.settle()
        leaves = self.tree_core.evictable_host_leaves
        leaves.mend()
        while tracker[self.component_type] < num_tokens:
            entry = self._first_on_host()
            if entry is None:
                break
            self.tree_core._evict_host_leaf(
                entry[-1], tracker, device_frees, host_frees, cache_actions
            )
        if leaves.broken:
            super().drive_host_eviction(
                num_tokens, tracker, device_frees, host_frees, cache_actions
            )

    def _first_on_host(self) -> Entry | None:
        leaves = self.tree_core.evictable_host_leaves
        try:
            return leaves.order.first()
        except Exception as error:
            leaves.give_up(error)
        return None

    def evict_component(
        self,
        node: Any,
        device_frees: dict[Any, list[Any]],
        host_frees: dict[Any, list[Any]],
        cache_actions: list[Any],
        target: EvictLayer = EvictLayer.DEVICE,
    ) -> tuple[int, int]:
        ledger = self.tree_core.ledger
        if ledger is not None:
            ledger.see(node.id, kv_state(node))
        freed: tuple[int, int] = super().evict_component(
            node, device_frees, host_frees, cache_actions, target
        )
        if ledger is not None and freed[0] and node.backuped:
            ledger.see(node.id, KVState.BACKED_UP)
        if freed[0] and self.on_evict is not None:
            self.on_evict(node, freed[0])
        return freed
