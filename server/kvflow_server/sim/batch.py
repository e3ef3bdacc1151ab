"""A prefill batch in the making, as SGLang's `PrefillAdder` builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvflow_server.policy.admission import Verdict

from .cache import Cache
from .requests import Request
from .tree import Node, without_last

if TYPE_CHECKING:
    from .server import Server

__all__ = ["Batch", "Candidate"]


class Candidate:
    """A waiting request, and where its prefix stands now."""

    __slots__ = ("deepest", "device", "host_hit", "last_on_device", "operations", "req")

    def __init__(self, req: Request, cache: Cache) -> None:
        self.req = req
        self.device = 0
        self.host_hit = 0
        self.last_on_device: Node | None = None
        self.deepest: Node | None = None
        # The last token is always computed: its logits are wanted.
        path = cache.tree_core.match(without_last(req.call.spans))
        for node in path:
            self.deepest = node
            if node.evicted:
                self.host_hit += len(node.key)
            else:
                self.device += len(node.key)
                self.last_on_device = node
        self.operations = cache.loads.on_path(path)


class _Extend:
    """What `Speeds` asks of a batch's forward mode."""

    @staticmethod
    def is_extend() -> bool:
        return True


class Batch:
    """Requests that are computed together; the fields are named as SGLang's."""

    forward_mode = _Extend
    chunked_req = None

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cache = server.cache
        self.requests: list[Request] = []
        self.extend_num_tokens = 0
        self.copied = 0
        """Tokens that it loads on demand."""
        self._shapes: list[tuple[int, int]] = []
        self._reserved = sum(req.left for req in server.running)
        self.hicache_consumer_index = -1
        self._awaited: Any = None

    @property
    def reqs(self) -> list[Request]:
        return self.requests

    def takes_more(self) -> bool:
        size = self._server.size
        running = len(self._server.running) + len(self.requests)
        return running < size.max_running and self.extend_num_tokens < size.max_prefill

    def has_room(self, candidate: Candidate) -> bool:
        """Whether what the request computes and its answer fit, with what those that
        run will still write."""
        cache, call = self._cache, candidate.req.call
        wanted = call.prompt - candidate.device
        free = cache.token_to_kv_pool_allocator.available_size()
        unlocked = cache.evictable_size()
        if candidate.last_on_device is not None:
            # Its own prefix will be locked, and is no room for it.
            unlocked -= cache.tree_core.unlocked_above(candidate.last_on_device)
            if not candidate.last_on_device.lock_ref:
                unlocked -= len(candidate.last_on_device.key)
        return free + unlocked > wanted + call.output + self._reserved

    def add(self, candidate: Candidate, verdict: Verdict) -> bool:
        """Take the request in; False, and nothing changed, if memory is short."""
        cache, req = self._cache, candidate.req
        recompute = verdict in (Verdict.RECOMPUTE, Verdict.JOIN_AND_RECOMPUTE)
        end, prefix = candidate.last_on_device, candidate.device
        if end is not None:
            cache.tree_core.lock(end)
        if candidate.host_hit and not recompute and candidate.deepest is not None:
            if cache.load_back(candidate.deepest.id):
                cache.tree_core.lock(candidate.deepest)
                if end is not None:
                    cache.tree_core.unlock(end)
                end, prefix = candidate.deepest, prefix + candidate.host_hit
                req.host = candidate.host_hit
                cache.counters.load_on_demand_tokens += candidate.host_hit
        elif recompute:
            cache.counters.recompute_tokens += candidate.host_hit
        new = req.call.prompt - prefix
        if not cache.allocate(new):
            if end is not None:
                cache.tree_core.unlock(end)
            req.host = 0
            return False
        req.prefix, req.last_node = prefix, end
        self._take(candidate, prefix, new)
        return True

    def _take(self, candidate: Candidate, prefix: int, new: int) -> None:
        cache, req = self._cache, candidate.req
        self.requests.append(req)
        self._shapes.append((prefix, new))
        self.extend_num_tokens += new
        self.copied += req.host
        self._reserved += req.call.output
        if candidate.operations:
            cache.loads.join(candidate.operations)
        if end := req.last_node:
            path = list(cache.tree_core.path_to_root(end))
            if candidate.operations:
                cache.counters.late_join_tokens += sum(
                    len(node.key) for node in path if node.kvflow.load
                )
            cache.prefetcher.note_use(path)
        req.kvflow_skips = 0
        if req.tag is not None and req.host:
            owner = req.tag.owner
            cache.prefetcher.accounts.missed(owner.client, owner.agent)

    def closed(self) -> Batch:
        """Submit the loads that the batch asked for; it waits for the newest copy."""
        cache = self._cache
        producer = cache.bus.start_loading()
        if producer >= 0:
            cache.speeds.load_started()
        joined = cache.loads.take_join()
        awaited = joined if producer < 0 else producer
        if awaited is not None and awaited >= 0:
            self.hicache_consumer_index = awaited
            self._awaited = cache.bus.load_of(awaited)
        return self

    def ends(self, now: float) -> float:
        """When it is computed, if it starts now: each layer waits for its own copy."""
        costs = self._server.costs
        compute = costs.prefill_seconds(self._shapes)
        copy = self._awaited
        if copy is None:
            return now + compute
        layer = 1 / costs.layers
        first = copy.start + (copy.end - copy.start) * layer
        return float(max(now + compute, first + compute, copy.end + compute * layer))
