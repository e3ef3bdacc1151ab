"""The cache: SGLang's `UnifiedRadixCache` with fixed prompts, prefetch and joins.

Thin overrides only. What a node is worth is `policy.priority`; who holds what is
`PromptRegistry`; what is in flight is `LoadTracker`; which piece comes next is
`Prefetcher`.

A tagged request writes its path in pieces, so that the end of its fixed prompt and
every piece of it are nodes of their own::

    [0, c1) [c1, c2) … [cn, b)   fixed, backed up to host memory at once
    [b, end)                     dynamic suffix, owned by (client, run, agent)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    InsertParams,
    InsertResult,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.backup import SuffixBackup
from kvflow_server.policy.learning import BoundaryLearner
from kvflow_server.policy.states import StateLedger
from kvflow_server.policy.steps import Outcome, StepTable

from .accounts import Accounts, note_update
from .clock import RankClock
from .collector import FrozenCollector
from .component import KVFlowFullComponent
from .config import EngineConfig, Mode
from .counters import Counters, DroppedMetadata
from .guard import Guard
from .hints import RequestTag, tag_of
from .inserts import digest, in_pieces
from .loads import LoadTracker
from .metrics import Publisher
from .overhead import Overhead
from .prefetching import Prefetcher
from .prewarming import Prewarmer
from .prompts import PromptRegistry
from .recording import Recorder
from .speeds import Speeds
from .states import look_at_all
from .tree import KVFlowTreeCore, state_of

__all__ = ["KVFlowCache"]


class KVFlowCache(UnifiedRadixCache):
    """`UnifiedRadixCache` that understands agent workflows."""

    tree_core: KVFlowTreeCore
    recorder: Recorder | None = None
    """Of `kvflow record`, on the first rank."""

    def __init__(self, params: Any, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig.from_env()
        self.table = StepTable(self.config.steps)
        self.counters = Counters()
        self.accounts = Accounts()
        self.learner = BoundaryLearner()
        self.publisher: Publisher | None = None
        self.next_publish = 0.0
        """When the metrics are due (`metrics.publish_when_due`)."""
        self.dropped = DroppedMetadata()
        self.overhead = Overhead()
        self.guard = Guard(self.overhead, self.counters, strict=self.config.debug)
        self.clock = RankClock()
        """Seconds by which decisions are made."""
        self.collector = FrozenCollector()
        self.copy_ended = False
        """A copy to the device has ended, which held memory, since the last pass."""
        self.starved = False
        """The last scheduler pass had requests waiting and nothing to run."""
        self._next_expiry = 0.0
        self._writing: RequestTag | None = None
        self._attached = False
        ours = {ComponentType.FULL: KVFlowFullComponent}
        params.component_registry_override = (
            params.component_registry_override or {}
        ) | ours
        super().__init__(params)
        cap = self.config.protected_tokens(int(self.token_to_kv_pool_allocator.size))
        self.tree_core.use_order(self.table, self.config.mode.order, cap)
        self.speeds = Speeds(self)
        self.backup = SuffixBackup(self.config.backup, self.config.backup_limits)
        self.loads = LoadTracker(self)
        bounds = self.config.prompts_per_agent, self.config.steps.agents_per_client
        self.prompts = PromptRegistry(self.tree_core, *bounds)
        self.prefetcher = Prefetcher(self)
        self._guard_callbacks()
        self.prewarmer = Prewarmer(self)
        if self.config.debug:
            self.tree_core.ledger = StateLedger()
        self._attached = True

    def _guard_callbacks(self) -> None:
        """What SGLang's own code runs into."""
        tree, full, guarded = self.tree_core, self.full_component, self.guard.wrap
        tree.fault = self.guard.absorb
        tree.settle, tree.prompt_gone = guarded(tree.settle), guarded(tree.prompt_gone)
        if full.on_evict is not None:
            full.on_evict = guarded(full.on_evict)

    @property
    def full_component(self) -> KVFlowFullComponent:
        component: KVFlowFullComponent = self.components[ComponentType.FULL]
        return component

    @property
    def bytes_per_token(self) -> int:
        """Of KV in this rank's host memory; 0 without any."""
        controller = self.cache_controller
        return int(controller.mem_pool_host.size_per_token) if controller else 0

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Measured on copies to the device; None until there were a few, and where they
        are too fast to measure: infinity is no JSON, nor a bandwidth."""
        tokens = self.speeds.as_dict()["bus_tokens_per_s"]
        return None if tokens is None else tokens * self.bytes_per_token

    def init_hicache(self, server_args: Any, params: Any) -> None:
        """Attach host memory, with an event slot for every copy KVFlow may start."""
        super().init_hicache(server_args, params)
        from sglang.srt.managers.cache_controller import LayerLoadingEvent

        counter = self.cache_controller.layer_done_counter
        # One more than the planner may use, for the load of a skipped request.
        for _ in range(self.config.prefetch.max_inflight + 1):
            counter.events.append(LayerLoadingEvent(counter.num_layers))
        counter.num_counters = len(counter.events)

    def apply_update(self, update: StepUpdate) -> Outcome:
        """Take in one step update, in band or out of band."""
        outcome = Outcome.STALE
        with self.guard:
            outcome = self.table.apply(update, self.clock.now)
            self.prompts.settle()
            note_update(self, update, outcome)
        return outcome

    def expire_when_due(self) -> None:
        """End the leases that have run out; looks ten times in a lease."""
        now = self.clock.now
        if now < self._next_expiry:
            return
        self._next_expiry = now + self.config.steps.lease_s / 10
        gone = self.table.expire(now)
        # And whose call outlived its lease, or was never let in.
        strangers = [c for c in self.prompts.clients() if not self.table.knows(c)]
        self.forget_clients([*gone, *strangers])
        self.prompts.settle()

    def forget_clients(self, clients: Iterable[str]) -> None:
        """The leases of these clients have ended."""
        for client in clients:
            self.prompts.drop_client(client)
            self.prefetcher.drop_client(client)
            self.accounts.drop(client)
            self.learner.drop_client(client)
            self.prewarmer.drop_client(client)

    # Writing: the boundary becomes a node, the suffix gets its owner.

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        if self.loads.active and self._crosses_a_load(req, up_to):
            # The insert would free this request's own slots and adopt slots that are
            # still being written.
            self.counters.deferred_checkpoints += 1
            return
        tag = tag_of(req)
        if tag is None or self.disable or self.config.mode is Mode.OFF:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
            return
        with self.guard:
            self._identify(tag, req)
        with self.writing_as(tag):
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        with self.guard:
            self.label_path(req.last_node, tag)

    def _identify(self, tag: RequestTag, req: Any) -> None:
        """Before the first insert: which prompt it is, and what its suffix is worth."""
        if tag.digest is not None:
            return
        owner, boundary = tag.owner, self._boundary(tag)
        tag.digest = digest(req, boundary)
        if tag.suffix_hits is None:
            suffix = req.origin_input_ids[boundary:]
            tag.suffix_hits = self.backup.hits(owner.client, owner.agent, suffix)

    @contextmanager
    def writing_as(self, tag: RequestTag) -> Iterator[None]:
        """Within the block, inserts are those of a request tagged so."""
        self._writing = tag
        try:
            yield
        finally:
            self._writing = None

    def insert(self, params: InsertParams) -> InsertResult:
        tag = self._writing
        if tag is None:
            return super().insert(params)
        pieces: Sequence[InsertParams] = (params,)
        suffix_hits: float = 1
        with self.guard:
            boundary = self._boundary(tag)
            if len(params.key) > boundary:
                hits = tag.suffix_hits
                suffix_hits = self.backup.default_hits if hits is None else hits
            pieces = self._pieces(tag, params, boundary)
        for piece in pieces[:-1]:
            super().insert(piece)
        self.tree_core.suffix_hits = suffix_hits
        try:
            result = super().insert(pieces[-1])
        finally:
            self.tree_core.suffix_hits = 1
        if len(pieces) == 1:
            tag.found = result.prefix_len
        return result

    def _pieces(
        self, tag: RequestTag, params: InsertParams, boundary: int
    ) -> Sequence[InsertParams]:
        """The inserts to make of this one, in order."""
        cuts = self.cuts(boundary, len(params.key))
        # What the request has written before, and holds, was cut then.
        if not cuts or cuts[-1] <= params.inserted_len:
            return (params,)
        tag.found, missing = self.tree_core.missing_boundaries(params.key, cuts)
        return in_pieces(params, missing)

    def _boundary(self, tag: RequestTag) -> int:
        return tag.fixed_tokens // self.page_size * self.page_size

    def cuts(self, boundary: int, length: int) -> list[int]:
        """Where nodes must end, ascending (`PrefetchLimits.cuts`)."""
        return self.config.prefetch.cuts(boundary, length, self.page_size)

    def label_path(self, node_id: int, tag: RequestTag) -> None:
        """A tagged request's path ends at this node: hang its prompt on the node that
        ends it, and own what lies below."""
        node = self.tree_core.find_node(node_id)
        if node is None or tag.digest is None:
            return
        boundary = self._boundary(tag)
        end = self.tree_core.depth_of(node)
        for step in self.tree_core.path_to_root(node):
            if end == boundary:
                self.prompts.record(
                    tag.owner.client, tag.owner.agent, tag.digest, boundary, step
                )
                self._forget_earlier_end(step, tag)
            if end <= boundary:
                return
            if not state_of(step).fixed:
                self.tree_core.note_use(step, tag.owner, found=end <= tag.found)
            end -= len(step.key)

    def _forget_earlier_end(self, node: Any, tag: RequestTag) -> None:
        """A prompt computed ahead ends at `node`, where its next piece ends."""
        client, agent = tag.owner.client, tag.owner.agent
        path = set(self.tree_core.path_to_root(node.parent)) if tag.extends else ()
        for handle in self.prompts.handles(client, agent) if path else ():
            if handle.tokens == tag.extends and handle.node in path:
                self.prompts.release(handle)

    def _crosses_a_load(self, req: Any, up_to: int) -> bool:
        key = RadixKey(
            req.full_untruncated_fill_ids[:up_to],
            req.extra_key,
            is_bigram=self.tree_core.is_eagle,
            cache_salt=req.cache_salt,
        ).page_aligned(self.page_size)
        with self.guard:
            return any(state_of(n).load for n in self.tree_core.walk(key))
        return True

    # Loading: what is LOADING is joined or left alone, never read early.

    def path_of(self, req: Any) -> Iterator[Any]:
        """The nodes of a queued request's matched prefix, deepest first."""
        node = self.tree_core.find_node(req.best_match_node)
        return iter(()) if node is None else self.tree_core.path_to_root(node)

    def missing_on_device(self, node: Any) -> list[Any]:
        """The nodes from `node` up that are only in host memory, deepest first."""
        missing = []
        for step in self.tree_core.path_to_root(node):
            if not step.evicted:
                break
            if not step.backuped:
                return []
            missing.append(step)
        return missing

    def _evict(
        self,
        params: EvictParams,
        available_size_targets: Any = None,
        **options: Any,
    ) -> EvictResult:
        """As in SGLang, but an allocation waits for what only a copy in flight locks.

        SGLang would retract requests for want of it, and abort the last one: a prefetch
        must never cost a request its place. The wait is for a few pieces at most, on
        a bus that works.
        """
        result = super()._evict(params, available_size_targets, **options)
        target = (available_size_targets or {}).get(ComponentType.FULL)
        while target is not None and not self.loads.starting:
            short = target[1] - self._component_available_size(target[0])
            ended = False
            try:  # not the guard, which would count the wait as work of ours
                ended = short > 0 and self.loads.await_oldest()
            except Exception as error:
                self.guard.absorb(error)
            if not ended:
                break
            rest = EvictParams(num_tokens=short)
            more = super()._evict(rest, available_size_targets, **options)
            result.num_tokens_evicted += more.num_tokens_evicted
        return result

    def init_load_back(self, params: InitLoadBackParams) -> Any:
        loaded = super().init_load_back(params)
        if loaded is not None:
            self.counters.load_on_demand_tokens += loaded[0]
        return loaded

    def ready_to_load_host_cache(self) -> int:
        producer: int = super().ready_to_load_host_cache()
        joining, joined = self.loads.joining, None
        with self.guard:
            joined = self.loads.take_join()
            if producer >= 0:
                self.speeds.load_started()
        # Asked before: a fault may have left a join half taken.
        if joining and joined is None:  # and cannot wait for what it would read
            self.drain_loads()
            self.loads.abandon_join()
        # A load queued by this very batch is newer than any it joins.
        return joined if producer < 0 and joined is not None else producer

    def loading_check(self, finish_count: int | None = None) -> None:
        queue = self.cache_controller.ack_load_queue if self.cache_controller else ()
        on_bus = tuple(queue)
        super().loading_check(finish_count)
        if on_bus:
            self.copy_ended |= len(queue) < len(on_bus)
            with self.guard:
                self.speeds.loads_seen(on_bus)
        if self.loads.active:
            with self.guard:
                self.loads.reap(self.ongoing_load_back)

    def _log_write_ack_metrics(self, ack: Any) -> None:
        super()._log_write_ack_metrics(ack)
        with self.guard:
            self.speeds.backup_arrived(ack)

    def drain_loads(self) -> None:
        """Block until every copy to the device has ended and is acknowledged."""
        if self.cache_controller is not None:
            for ack in list(self.cache_controller.ack_load_queue):
                ack.finish_event.synchronize()
            self.loading_check()

    def _reset_full(self) -> None:
        if self._attached:
            # Handles point into the tree that goes now; what clients said stays.
            ours: tuple[Any, ...] = (self.prompts, self.loads, self.speeds)
            for part in (*ours, self.prefetcher, self.tree_core.ledger or {}):
                with self.guard:
                    part.clear()
        super()._reset_full()

    def check_integrity(self) -> None:
        """KVFlow's own invariants. SGLang's are `sanity_check()`."""
        self.table.check_integrity()
        self.prompts.settle()
        self.tree_core.check_integrity()
        look_at_all(self.tree_core)
        self.prefetcher.check_integrity()
