"""Carries out what the prefetch planner chooses, one scheduler pass at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from kvflow_server.policy.prefetch import Candidate, Credit, rank_candidates
from kvflow_server.policy.priority import EvictionClass, EvictionKey

from .config import Mode
from .tree import state_of

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["Prefetcher"]

_EARLIEST = float("-inf")


class Prefetcher:
    """Starts demand loads and prefetches between scheduler passes."""

    def __init__(self, cache: KVFlowCache) -> None:
        self._cache = cache
        self._limits = cache.config.prefetch
        self._credit: dict[str, Credit] = {}
        self._planned_at: tuple[int, ...] = ()

    def run(
        self,
        busy: Callable[[], Collection[tuple[str, str]]],
        reserve: Callable[[], int],
    ) -> None:
        """Start what this pass may start; asks only when there is something to plan.

        `busy` gives the (client, agent) whose requests are on the server already,
        `reserve` the tokens that running requests need to keep decoding.
        """
        self._settle_unused()
        self._start_demand()
        if not self._cache.config.mode.prefetches:
            return
        if self._stamp() != self._planned_at:
            self._plan(busy(), reserve())
            self._planned_at = self._stamp()

    def note_miss(self, client: str) -> None:
        """A tagged request had to load on demand: a prefetch would have been used, so
        this is how a throttled client earns its credit back."""
        self._record(client, used=True)

    def note_use(self, path: Iterable[Any]) -> None:
        """An admitted request uses these nodes: settle what was prefetched for it."""
        for node in path:
            state = state_of(node)
            if state.prefetched is not None:
                self._cache.counters.prefetch_used_tokens += len(node.key)
                self._record(state.prefetched, used=True)
                state.prefetched = None

    def drop_client(self, client: str) -> None:
        self._credit.pop(client, None)

    def clear(self) -> None:
        self._planned_at = ()
        self._cache.full_component.unused_prefetches.clear()

    def _start_demand(self) -> None:
        """Loads of skipped requests go first and may displace anything unlocked."""
        demand = self._cache.loads.demand
        for node_id, client in demand.values():
            node = self._cache.tree_core.find_node(node_id)
            operation = self._cache.loads.start(node) if node is not None else None
            if operation is not None:
                self._cache.counters.load_on_demand_tokens += operation.tokens
                if client is not None:
                    self.note_miss(client)
        demand.clear()

    def _plan(self, busy: Collection[tuple[str, str]], reserve: int) -> None:
        cache = self._cache
        owners = [owner for owner in cache.prompts.agents() if owner not in busy]
        for choice in rank_candidates(cache.table, owners, self._limits):
            if choice.retained and cache.config.mode is Mode.STEPS:
                continue
            if not self._credit_allows(choice.client):
                continue
            for handle in cache.prompts.handles(choice.client, choice.agent):
                for target in self._pieces(handle.node):
                    if cache.loads.in_flight >= self._limits.max_inflight:
                        return
                    if not self._fetch(target, choice, reserve):
                        # What comes next has a lower ceiling: no room there either.
                        return

    def _pieces(self, end: Any) -> list[Any]:
        """Nodes whose loading brings the prompt in piece by piece, shallow first."""
        targets: list[Any] = []
        tokens = 0
        for node in reversed(self._cache.missing_on_device(end)):
            tokens += len(node.key)
            if tokens >= self._limits.piece_tokens or node is end:
                if tokens >= self._cache.load_back_threshold:
                    targets.append(node)
                tokens = 0
        return targets

    def _fetch(self, target: Any, choice: Candidate, reserve: int) -> bool:
        cache = self._cache
        missing = cache.missing_on_device(target)
        tokens = sum(len(node.key) for node in missing)
        room = (
            cache.token_to_kv_pool_allocator.available_size() + cache.evictable_size()
        )
        if room - tokens < reserve:
            cache.counters.prefetch_refused += 1
            return False
        with cache.full_component.evict_below(_ceiling(choice), choice.client):
            operation = cache.loads.start(target)
        if operation is None:
            cache.counters.prefetch_refused += 1
            return False
        cache.counters.prefetch_tokens += operation.tokens
        for node in missing:
            state_of(node).prefetched = choice.client
        return True

    def _settle_unused(self) -> None:
        unused = self._cache.full_component.unused_prefetches
        for client, tokens in unused:
            self._cache.counters.prefetch_unused_tokens += tokens
            self._record(client, used=False)
        unused.clear()

    def _record(self, client: str, *, used: bool) -> None:
        self._credit.setdefault(client, Credit()).record(used, self._limits)

    def _credit_allows(self, client: str) -> bool:
        credit = self._credit.get(client)
        return credit is None or credit.allows(self._limits)

    def _stamp(self) -> tuple[int, ...]:
        """Equal stamps: planning again would find what it found before."""
        cache = self._cache
        return (
            cache.table.version,
            cache.prompts.version,
            cache.loads.completed,
            cache.loads.in_flight,
            cache.evictable_size(),
            cache.token_to_kv_pool_allocator.available_size(),
        )


def _ceiling(choice: Candidate) -> EvictionKey:
    """Only what is evicted before every prompt as near as this one may go for it."""
    group = EvictionClass.RETAINED if choice.retained else EvictionClass.FIXED
    return EvictionKey(group, -choice.steps, _EARLIEST)
