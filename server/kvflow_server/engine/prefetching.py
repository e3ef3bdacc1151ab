"""Carries out what the prefetch planner chooses, one scheduler pass at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvflow_server.policy.estimates import Pace, worth_prefetching
from kvflow_server.policy.prefetch import (
    Candidate,
    CandidateIndex,
    PrefetchAccounts,
    Room,
)
from kvflow_server.policy.priority import (
    EvictionClass,
    EvictionKey,
    Order,
    nearness,
)

from .config import Mode
from .node import state_of

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["Prefetcher"]

_EARLIEST = float("-inf")

Nodes = Sequence[Any]
"""Nodes on one path that are only in host memory, deepest first."""


class Prefetcher:
    """Starts demand loads and prefetches between scheduler passes."""

    def __init__(self, cache: KVFlowCache) -> None:
        self._cache = cache
        self._limits = cache.config.prefetch
        self.accounts = PrefetchAccounts(self._limits)
        self.candidates = CandidateIndex(
            cache.table, self._limits, next_run=cache.config.mode is Mode.FULL
        )
        self._pace: dict[str, Pace] = {}
        self._moved: dict[tuple[str, str], float] = {}
        """(client, run) -> when it last went a step on; live runs only."""
        self._planned_at: tuple[int, ...] = ()
        self._lull = False
        """Nothing is computed, and shortly before something was."""
        self._computed_at = _EARLIEST
        if self.active:
            cache.full_component.on_evict = self._evicted
            cache.prompts.on_last_gone = self.candidates.found

    @property
    def active(self) -> bool:
        """Whether anything is ever copied ahead."""
        return self._cache.config.mode.prefetches

    def run(
        self,
        busy: Callable[[], Collection[tuple[str, str]]],
        reserve: Callable[[], int],
        *,
        computing: bool,
    ) -> None:
        """Start what this pass may start; asks only when there is something to plan.

        `busy` gives the (client, agent) whose requests are on the server already,
        `reserve` the tokens that running requests need to keep decoding. `computing`:
        the device has something to do.
        """
        if computing:
            self._computed_at = self._cache.clock.now
        self._lull = not computing and self._cache.clock.now < self.lull_ends
        self._note_moves(self.candidates.take_in())
        if self._cache.cache_controller is None:
            return
        served = self._start_demand()
        if not self.active or not self.candidates:
            return
        if self._cache.loads.queued >= self._limits.max_inflight:
            return
        if served and self._stamp() != self._planned_at:
            self._plan(busy(), reserve())
            self._planned_at = self._stamp()

    @property
    def lull_ends(self) -> float:
        """When those beyond the horizon may be fetched for though nothing is computed
        (clock time)."""
        return self._computed_at + self._limits.lull_s

    def note_use(self, path: Iterable[Any]) -> None:
        """An admitted request uses these nodes: settle what was prefetched for it."""
        for node in path:
            state = state_of(node)
            if state.prefetched is not None:
                self._cache.counters.prefetch_used_tokens += len(node.key)
                self.accounts.settled(*state.prefetched, len(node.key), used=True)
                state.prefetched = None

    def drop_client(self, client: str) -> None:
        self.accounts.drop(client)
        self.candidates.drop(client)
        self._pace.pop(client, None)

    def clear(self) -> None:
        """The tree was reset."""
        self._planned_at = ()
        self.candidates.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError if something is kept of who is gone."""
        self._note_moves(self.candidates.take_in())
        for client, agent in self.candidates.missing():
            owned = self._cache.prompts.handles(client, agent)
            assert owned, f"{agent} is wanted on the device and owns no prompt"
        for client, run in self._moved:
            assert self._cache.table.run_is_live(client, run), f"run {run} has ended"

    def _evicted(self, node: Any, tokens: int) -> None:
        """`node` loses `tokens` on the device. Prompts lose their ends first, so only
        those that end here were whole until now."""
        state = state_of(node)
        if state.prefetched is not None:
            self._cache.counters.prefetch_unused_tokens += tokens
            self.accounts.settled(*state.prefetched, tokens, used=False)
            state.prefetched = None
        for handle in state.ends:
            self.candidates.miss(handle.client, handle.agent)

    def _note_moves(self, moved: Iterable[tuple[str, str]]) -> None:
        """Runs that went a step on tell their client's pace."""
        now = self._cache.clock.now
        for client, run in moved:
            before = self._moved.pop((client, run), None)
            if before is not None and self._cache.table.knows(client):
                self._pace.setdefault(client, Pace()).moved(now, now - before)
            if self._cache.table.run_is_live(client, run):
                self._moved[client, run] = now

    def _start_demand(self) -> bool:
        """Loads of skipped requests go first and may displace anything unlocked.

        False if one of them could not start: then no prefetch may take its place.
        """
        loads = self._cache.loads
        served = True
        demand, loads.demand = loads.demand, {}
        for node_id, owner in demand.values():
            node = self._cache.tree_core.find_node(node_id)
            missing = self._cache.missing_on_device(node) if node is not None else []
            if not missing:
                continue
            operation = loads.start(missing)
            if operation is None:
                served = False
                continue
            self._cache.counters.load_on_demand_tokens += operation.tokens
            if owner is not None:
                self.accounts.missed(*owner)
        return served

    def _plan(self, busy: Collection[tuple[str, str]], reserve: int) -> None:
        for choice in self.candidates.in_order():
            if self._bus_is_taken(choice):
                continue
            if (choice.client, choice.agent) in busy:
                continue
            if not self.accounts.allows(choice.client, choice.agent):
                continue
            if not self._fetch_for(choice, reserve):
                # What comes next has a lower ceiling: no room there either.
                return

    def _bus_is_taken(self, choice: Candidate) -> bool:
        """Whoever is beyond the horizon waits until nothing else is on the bus, nor about
        to be."""
        queued = self._cache.loads.queued
        if choice.steps > self._limits.horizon:
            return self._lull or queued > 0
        return queued >= self._limits.max_inflight

    def _fetch_for(self, choice: Candidate, reserve: int) -> bool:
        """Start what may start of the agent's prompts; False if there is no room."""
        cache = self._cache
        wanting = False
        for handle in cache.prompts.handles(choice.client, choice.agent):
            missing = cache.missing_on_device(handle.node)
            for piece in self._portions(missing, choice, reserve):
                wanting = True
                if self._bus_is_taken(choice) or not self._comes_in_time(choice, piece):
                    return True
                if not self._fetch(piece, choice, reserve):
                    cache.counters.prefetch_refused += 1
                    return False
        if not wanting:
            self.candidates.found(choice.client, choice.agent)
        return True

    def _portions(
        self, missing: Nodes, choice: Candidate, reserve: int
    ) -> Sequence[Nodes]:
        """The copies that bring a prompt in.

        The call of an agent that executes may come at any moment, and would wait layer
        by layer: as for a load on demand, in one copy. Of several, one behind another,
        it would wait for every layer of all but the last.
        """
        pieces = list(self._pieces(missing))
        imminent = choice.steps == 0 and not choice.retained
        if imminent and len(pieces) > 1 and self._fits(missing, choice, reserve):
            return [missing]
        return pieces

    def _pieces(self, missing: Nodes) -> Iterator[Nodes]:
        """What brings a prompt in piece by piece, the shallowest first."""
        piece: list[Any] = []
        tokens = 0
        for node in reversed(missing):
            piece.insert(0, node)
            tokens += len(node.key)
            if tokens >= self._limits.piece_tokens or node is missing[0]:
                if tokens >= self._cache.load_back_threshold:
                    yield piece
                piece, tokens = [], 0

    def _comes_in_time(self, choice: Candidate, piece: Nodes) -> bool:
        cache = self._cache
        pace = self._pace.get(choice.client)
        worth = worth_prefetching(
            tokens=sum(len(node.key) for node in piece),
            ahead=cache.speeds.tokens_on_bus,
            lead=None if pace is None else pace.lead(choice.steps, cache.clock.now),
            bus=cache.speeds.bus.value,
            prefill=cache.speeds.prefill.value,
        )
        cache.counters.prefetch_too_late += not worth
        return worth

    def _fits(self, nodes: Nodes, choice: Candidate, reserve: int) -> bool:
        """Whether nothing must give way for them but what goes before them."""
        cache = self._cache
        room = Room(
            free=cache.token_to_kv_pool_allocator.available_size(),
            # The copy locks its whole path: what is there above it, too.
            unlocked=cache.evictable_size() - cache.tree_core.unlocked_above(nodes[-1]),
            reserve=reserve,
        )
        return room.takes(
            sum(len(node.key) for node in nodes),
            lambda enough: cache.full_component.displaceable(
                self._ceiling(choice), choice.client, enough
            ),
        )

    def _fetch(self, piece: Nodes, choice: Candidate, reserve: int) -> bool:
        """Start the copy of one piece, if it fits."""
        cache = self._cache
        if not self._fits(piece, choice, reserve):
            return False
        with cache.full_component.evict_below(self._ceiling(choice), choice.client):
            operation = cache.loads.start(piece)
        if operation is None:
            return False
        cache.counters.prefetch_tokens += operation.tokens
        self.accounts.issued(choice.client, choice.agent, operation.tokens)
        for node in piece:
            state_of(node).prefetched = (choice.client, choice.agent)
        return True

    def _ceiling(self, choice: Candidate) -> EvictionKey:
        """Only what is evicted before every prompt as near as this one may go for it."""
        group = EvictionClass.RETAINED if choice.retained else EvictionClass.FIXED
        by_likelihood = self._cache.config.mode.order is Order.WORKFLOW
        unlikely = choice.unlikelihood if by_likelihood else 0.0
        return EvictionKey(group, nearness(choice.steps, unlikely), _EARLIEST)

    def _stamp(self) -> tuple[int, ...]:
        """Equal stamps: planning again would find what it found before."""
        cache = self._cache
        return (
            cache.table.version,
            self.candidates.version,
            cache.loads.completed,
            cache.loads.queued,
            cache.evictable_size(),
            cache.token_to_kv_pool_allocator.available_size(),
            self._lull,
        )
