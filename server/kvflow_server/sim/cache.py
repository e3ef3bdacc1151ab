"""The simulator's cache: SGLang's radix cache with HiCache, and KVFlow on top of it.

Tree mechanics and memory are simulated; every decision is production code: the order of
eviction (`TreeOrder`, `Protection`), fixed prompts (`PromptRegistry`), what goes to host
memory (`SuffixBackup`), what is fetched (`Prefetcher`) and who waits for it
(`LoadTracker`), by the same measured speeds (`Speeds`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from kvflow_sdk.wire import StepUpdate
from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.clock import RankClock
from kvflow_server.engine.config import EngineConfig, Mode
from kvflow_server.engine.counters import Counters
from kvflow_server.engine.loads import LoadTracker
from kvflow_server.engine.node import state_of
from kvflow_server.engine.prefetching import Prefetcher
from kvflow_server.engine.prompts import PromptRegistry
from kvflow_server.engine.speeds import Speeds
from kvflow_server.policy.backup import Backup, SuffixBackup
from kvflow_server.policy.priority import EvictionKey, Owner
from kvflow_server.policy.steps import StepTable

from .bus import Bus, Copy
from .tree import Node, Spans, Tree, tokens_in

if TYPE_CHECKING:
    from kvflow_server.engine.cache import KVFlowCache

__all__ = ["Cache", "Tag"]

LOAD_BACK_THRESHOLD = 10
"""Tokens; as `UnifiedRadixCache.load_back_threshold`."""


class Tag:
    """What the metadata of a call says of it."""

    __slots__ = ("fixed", "found", "owner", "suffix_hits")

    def __init__(self, owner: Owner, fixed: int) -> None:
        self.owner = owner
        self.fixed = fixed
        self.found = 0
        self.suffix_hits: float = 1


class _Allocator:
    """The device pool, counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0

    def available_size(self) -> int:
        return self.size - self.used


class _Component:
    """Eviction from the device, as `KVFlowFullComponent` has it."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.on_evict: Callable[[Any, int], None] | None = None
        self.ceiling: EvictionKey | None = None
        self.beneficiary: str | None = None

    @contextmanager
    def evict_below(
        self, ceiling: EvictionKey, beneficiary: str | None = None
    ) -> Iterator[None]:
        self.ceiling, self.beneficiary = ceiling, beneficiary
        try:
            yield
        finally:
            self.ceiling = self.beneficiary = None

    def displaceable(self, ceiling: EvictionKey, beneficiary: str, enough: int) -> int:
        return self._cache.tree_core.displaceable(ceiling, beneficiary, enough)


class Cache:
    """One device pool and one pool in host memory (0 tokens: none)."""

    load_back_threshold = LOAD_BACK_THRESHOLD

    def __init__(
        self, costs: Costs, pool: int, host: int, config: EngineConfig | None
    ) -> None:
        """`config` None is stock SGLang."""
        self.stock = config is None or config.mode is Mode.OFF
        self.config = config or EngineConfig(mode=Mode.OFF)
        self.costs = costs
        self.clock = RankClock()
        self.counters = Counters()
        self.table = StepTable(self.config.steps)
        self.tree_core = Tree()
        cap = self.config.protected_tokens(pool)
        self.tree_core.use_order(self.table, self.config.mode.order, cap)
        self.token_to_kv_pool_allocator = _Allocator(pool)
        self.host_free = host
        self.bus = Bus(costs, self.config.prefetch.max_inflight)
        self.cache_controller = self.bus if host else None
        self.full_component = _Component(self)
        # The production parts ask of a cache what this one has, too.
        like = cast("KVFlowCache", self)
        self.speeds = Speeds(like)
        self.backup = SuffixBackup(self.config.backup, self.config.backup_limits)
        self.loads = LoadTracker(like)
        self.prompts = PromptRegistry(
            self.tree_core,
            self.config.prompts_per_agent,
            self.config.steps.agents_per_client,
        )
        self.prefetcher = Prefetcher(like)
        self._next_expiry = 0.0

    # The clients.

    def apply_update(self, update: StepUpdate) -> None:
        """One step update; the order follows when it is asked (`settle`)."""
        if not self.stock:
            self.table.apply(update, self.clock.now)

    def expire_when_due(self) -> None:
        """End the leases that have run out; looks ten times in a lease."""
        if self.clock.now < self._next_expiry:
            return
        self._next_expiry = self.clock.now + self.config.steps.lease_s / 10
        for client in self.table.expire(self.clock.now):
            self.prompts.drop_client(client)
            self.prefetcher.drop_client(client)
        self.prompts.settle()

    # Memory.

    def evictable_size(self) -> int:
        return self.tree_core.evictable

    def allocate(self, tokens: int) -> bool:
        """Take device slots, evicting for them; False, and nothing taken, if short."""
        pool = self.token_to_kv_pool_allocator
        short = tokens - pool.available_size()
        if short > 0:
            self._evict(short)
            if tokens > pool.available_size():
                return False
        pool.used += tokens
        return True

    def free(self, tokens: int) -> None:
        self.token_to_kv_pool_allocator.used -= tokens

    def _evict(self, tokens: int) -> None:
        tree, component = self.tree_core, self.full_component
        tree.settle()
        freed = 0
        while freed < tokens:
            entry = tree.next_victim(component.ceiling, component.beneficiary)
            if entry is None:
                return
            node = entry[-1]
            freed += len(node.key)
            self._evict_node(node)

    def _evict_node(self, node: Node) -> None:
        tokens = len(node.key)
        self.token_to_kv_pool_allocator.used -= tokens
        if self.full_component.on_evict is not None:
            self.full_component.on_evict(node, tokens)
        if node.backuped:
            self.tree_core.leave_device(node)
        else:
            self._drop_below(node)
            self.tree_core.evictable -= tokens
            self.tree_core.remove(node)

    def _drop_below(self, node: Node) -> None:
        """What only host memory holds below a node that goes altogether."""
        for child in list(node.children.values()):
            self._drop_below(child)
            self.host_free += len(child.key)
            self.tree_core.remove(child)

    # Writing.

    def insert(
        self, spans: Spans, start: int, counted: int, tag: Tag | None
    ) -> tuple[Node, int]:
        """A request's tokens from `start` on, which it has computed, enter the tree.

        `counted`: what an earlier insert of the same request has counted as used. The
        deepest node, and how many of the request's own slots were of no use, because
        the device has those tokens.
        """
        tree = self.tree_core
        if self.stock:
            tag = None
        cuts: list[int] = []
        if tag is not None:
            cuts = self.config.prefetch.cuts(tag.fixed, tokens_in(spans))
        path, found = tree.insert(spans, cuts)
        end = duplicates = 0
        for node in path:
            end += len(node.key)
            if end > start and node.evicted:
                tree.come_to_device(node)
            elif start < end <= found:
                duplicates += len(node.key)
            if end > counted:
                self._count_use(node, tag, end)
        if tag is not None:
            tag.found = found
            self._label(path, tag)
        return path[-1], duplicates

    def _count_use(self, node: Node, tag: Tag | None, end: int) -> None:
        """A request has used the node: perhaps it goes to host memory now."""
        node.hit_count += 1
        hits = 1.0
        if tag is not None and end > tag.fixed:
            hits = tag.suffix_hits
        if node.hit_count >= hits:
            self._write(node)

    def _write(self, node: Node) -> None:
        if self.cache_controller is None or node.backuped or node.evicted:
            return
        tokens = len(node.key)
        if not self._host_room(tokens):
            return
        self.host_free -= tokens
        node.backuped = True
        self.tree_core.lock(node)  # nobody evicts what is being copied
        self.bus.start_writing(node, tokens)

    def _host_room(self, tokens: int) -> bool:
        tree = self.tree_core
        tree.settle()
        while self.host_free < tokens:
            entry = tree.evictable_host_leaves.order.first()
            if entry is None:
                return False
            self.host_free += len(entry[-1].key)
            tree.remove(entry[-1])
        return True

    def identify(self, spans: Spans, tag: Tag) -> None:
        """What the call's suffix is worth; asked once per call."""
        if self.stock:
            return
        if self.config.backup is Backup.REUSED:
            suffix = _stand_in(spans, tag.fixed)
            tag.suffix_hits = self.backup.hits(
                tag.owner.client, tag.owner.agent, suffix
            )
        else:
            tag.suffix_hits = self.backup.default_hits

    def _label(self, path: list[Node], tag: Tag) -> None:
        """As `KVFlowCache.label_path`."""
        end = sum(len(node.key) for node in path)
        owner = tag.owner
        for node in reversed(path):
            if end == tag.fixed:
                digest = hash((node.spans, end))
                self.prompts.record(owner.client, owner.agent, digest, end, node)
            if end <= tag.fixed:
                return
            if not state_of(node).fixed:
                self.tree_core.note_use(node, owner, found=end <= tag.found)
            end -= len(node.key)

    # Loading.

    def missing_on_device(self, node: Node) -> list[Node]:
        """The nodes from `node` up that are only in host memory, deepest first."""
        missing = []
        for step in self.tree_core.path_to_root(node):
            if not step.evicted:
                break
            missing.append(step)
        return missing

    def load_back(self, anchor: int) -> bool:
        """Queue the copy of a node and of what is missing above it."""
        tree = self.tree_core
        node = tree.by_id[anchor]
        missing = self.missing_on_device(node)
        tokens = sum(len(step.key) for step in missing)
        if tokens < self.load_back_threshold:
            return False
        tree.lock(node)
        if not self.allocate(tokens):
            tree.unlock(node)
            return False
        for step in reversed(missing):
            tree.come_to_device(step)
        self.bus.queue_load(node, tokens)
        return True

    def copies_ended(self) -> None:
        """Take in what the bus has done by now."""
        on_bus = self.speeds.loads_on_bus()
        ended = self.bus.loads_ended()
        for copy in ended:
            self._release(copy)
        for copy in self.bus.writes_ended():
            self._release(copy)
            self.speeds.backup_arrived(copy)
        if on_bus:
            self.speeds.loads_seen(on_bus)
        if self.loads.active:
            under_way = self.bus.ack_load_queue
            self.loads.reap(node.id for copy in under_way for node in copy.anchors)

    def _release(self, copy: Copy) -> None:
        for node in copy.anchors:
            self.tree_core.unlock(node)

    def check_integrity(self) -> None:
        """Raise AssertionError if the books do not agree with the tree."""
        tree = self.tree_core
        self.prompts.settle()
        free = sum(len(n.key) for n in tree.nodes() if not n.evicted and not n.lock_ref)
        assert free == tree.evictable, f"evictable: {tree.evictable}, not {free}"
        for leaves in (tree.evictable_device_leaves, tree.evictable_host_leaves):
            leaves.check_integrity()
        self.table.check_integrity()
        self.prefetcher.check_integrity()


def _stand_in(spans: Iterable[tuple[Any, int, int]], skip: int) -> array[int]:
    """Numbers in place of the tokens after the first `skip`: equal where texts are."""
    stand_in: array[int] = array("q")
    for text, start, stop in spans:
        tokens = stop - start
        dropped = min(skip, tokens)
        skip -= dropped
        stand_in.extend(array("q", [hash(text)]) * (tokens - dropped))
    return stand_in
