"""The simulated server: SGLang's scheduler loop, pass by pass.

Each pass takes in what has arrived and which copies have ended, builds a prefill batch
from the waiting requests if any may run, else decodes; then the planner may start
copies. It is first come first served, prefill goes before decode, and admission reserves
whole answers, so that nothing is ever retracted. Decode steps in which nothing can
happen are taken together.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.config import EngineConfig
from kvflow_server.engine.verdict import Admitted, verdict_on
from kvflow_server.policy.admission import Verdict
from kvflow_server.policy.priority import Owner

from .batch import Batch, Candidate
from .cache import Cache, Tag
from .requests import Answer, Call, Request

__all__ = ["Server", "ServerSize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSize:
    """The sizes that a server is started with."""

    pool: int
    """Device KV pool, tokens."""
    host: int = 0
    """Host KV pool, tokens; 0: none."""
    max_running: int = 256
    max_prefill: int = 8192
    """Tokens of one prefill batch; a longer prompt is a batch of its own."""


class Server:
    """Runs until nothing is left to do (`run`)."""

    def __init__(
        self, costs: Costs, size: ServerSize, config: EngineConfig | None
    ) -> None:
        """`config` None is stock SGLang: with a host pool HiCache, without LRU alone."""
        self.costs = costs
        self.size = size
        self.cache = Cache(costs, size.pool, size.host, config)
        self.now = 0.0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._starved = False

    # What programs do.

    def at(self, time: float, happen: Callable[[], None]) -> None:
        """Let `happen` be called at `time`, or with the first pass after it."""
        heapq.heappush(self._events, (time, next(self._order), happen))

    def submit(self, call: Call) -> None:
        """A call arrives now, its metadata with it."""
        update, tag = call.update, None
        if update is not None:
            self.cache.apply_update(update)
            if update.agent is not None:
                tag = Tag(Owner(update.client, update.run, update.agent), call.fixed)
                self.cache.identify(call.spans, tag)
        rid = str(next(self._order))
        self.waiting.append(Request(rid, call, tag, self.now))

    # The loop.

    def run(self) -> float:
        """Until every call is answered and nothing is to happen; the time then."""
        while self._events or self.waiting or self.running:
            self._pass()
        return self.now

    def _pass(self) -> None:
        cache = self.cache
        cache.clock.advance(self.now)
        cache.bus.now = self.now
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        cache.copies_ended()
        batch = self._admit()
        self._after_admission(batch)
        if batch is not None:
            self._prefill(batch)
        elif self.running:
            self._decode()
        else:
            self._idle()

    def _admit(self) -> Batch | None:
        """The next prefill batch, if any request may run."""
        cache = self.cache
        if not self.waiting:
            return None
        batch = Batch(self)
        passed: list[Request] = []
        while self.waiting and batch.takes_more():
            req = self.waiting[0]
            candidate = Candidate(req, cache)
            others = len(self.waiting) - 1 + len(passed)
            verdict = self._verdict(candidate, batch, others)
            if verdict in (Verdict.SKIP, Verdict.LOAD_AND_SKIP):
                self._skip(candidate, load=verdict is Verdict.LOAD_AND_SKIP)
                passed.append(req)
            elif not (batch.has_room(candidate) and batch.add(candidate, verdict)):
                break
            self.waiting.popleft()
        self.waiting.extendleft(reversed(passed))
        return batch.closed() if batch.requests else None

    def _verdict(self, candidate: Candidate, batch: Batch, others: int) -> Verdict:
        req = candidate.req
        return verdict_on(
            self.cache,  # type: ignore[arg-type]
            loading=sum(operation.tokens for operation in candidate.operations),
            host_hit=candidate.host_hit,
            wanted=req.call.prompt - candidate.device,
            beside=Admitted(batch.extend_num_tokens, batch.copied),
            other_ready=lambda: bool(
                batch.requests or self.running or (others and not self._starved)
            ),
            room=lambda: batch.has_room(candidate),
            skips=req.kvflow_skips,
        )

    def _skip(self, candidate: Candidate, *, load: bool) -> None:
        req, cache = candidate.req, self.cache
        req.kvflow_skips += 1
        cache.counters.skipped_passes += 1
        if load and candidate.deepest is not None:
            owner = req.tag.owner if req.tag is not None else None
            whose = None if owner is None else (owner.client, owner.agent)
            cache.loads.demand[req.rid] = (candidate.deepest.id, whose)

    def _after_admission(self, batch: Batch | None) -> None:
        """As `engine.scheduling.after_pass`."""
        cache = self.cache
        self._starved = batch is None and not self.running and bool(self.waiting)
        if cache.stock:
            return
        cache.expire_when_due()
        cache.speeds.pass_ended(batch)
        admitted = batch.requests if batch is not None else []
        cache.prefetcher.run(
            busy=lambda: _agents([*self.running, *admitted, *self.waiting]),
            reserve=lambda: sum(req.left for req in (*self.running, *admitted)),
            computing=bool(self.running or admitted),
        )

    def _prefill(self, batch: Batch) -> None:
        ends = batch.ends(self.now)
        self.now = self.cache.bus.now = ends
        for req in batch.requests:
            self._insert(req)
            self._generated(req, 1)
        self.running += [req for req in batch.requests if not req.finished()]

    def _decode(self) -> None:
        """As many steps as pass before something can happen; at least one."""
        running = self.running
        many = len(running)
        context = sum(req.call.prompt + req.done for req in running)
        step = self.costs.decode_seconds(many, context)
        steps = min(req.left for req in running)
        if step > 0:
            until = self._next_event() - self.now
            if until < steps * step:
                steps = max(1, min(steps, -int(-until // step)))
        # The context grows by a token per request and step: in the mean, half of all.
        mean = context + many * (steps - 1) / 2
        seconds = steps * self.costs.decode_seconds(many, mean)
        self.now = self.cache.bus.now = self.now + seconds
        for req in running:
            self._generated(req, steps)
        self.running = [req for req in running if not req.finished()]

    def _idle(self) -> None:
        """Nothing to compute until something happens."""
        then = self._next_event()
        if then == float("inf"):
            assert not self.waiting, (
                f"request of {self.waiting[0].call.prompt} tokens can never run in a "
                f"pool of {self.size.pool}"
            )
            return
        self.now = max(self.now, min(then, self._lull_ends()))

    def _next_event(self) -> float:
        arrival = self._events[0][0] if self._events else float("inf")
        return min(arrival, self.cache.bus.next_end())

    def _lull_ends(self) -> float:
        """When a server that has nothing to do may start copies all the same."""
        if self.cache.stock or not self.cache.prefetcher.candidates:
            return float("inf")
        ends = self.cache.prefetcher.lull_ends
        return ends if ends > self.now else float("inf")

    # What becomes of requests.

    def _insert(self, req: Request) -> None:
        """Its prompt has been computed and enters the tree."""
        cache, before = self.cache, req.last_node
        node, unused = cache.insert(req.call.spans, req.prefix, 0, req.tag)
        cache.tree_core.lock(node)
        if before is not None:
            cache.tree_core.unlock(before)
        req.last_node = node
        cache.free(unused)

    def _generated(self, req: Request, tokens: int) -> None:
        self._take_slots(tokens)
        req.done += tokens
        req.output_ids = (0,)
        if not req.finished():
            return
        cache, call = self.cache, req.call
        text = call.text if call.text is not None else ("answer", req.rid)
        spans = call.whole or (*call.spans, (text, 0, req.done))
        prompt = call.prompt
        _node, unused = cache.insert(spans, prompt, prompt, req.tag)
        cache.free(unused)
        assert req.last_node is not None
        cache.tree_core.unlock(req.last_node)
        answer = Answer(req.arrived, self.now, prompt, req.prefix - req.host, req.host)
        call.answered(answer)

    def _take_slots(self, tokens: int) -> None:
        """Of the device pool. As in `KVFlowCache._evict`, memory that only a copy in
        flight holds is waited for."""
        cache = self.cache
        while not cache.allocate(tokens):
            then = cache.bus.next_end()
            assert then < float("inf"), "admission let in more than fits"
            self.now = cache.bus.now = max(self.now, then)
            cache.copies_ended()
            cache.counters.awaited_copies += 1


def _agents(requests: list[Any]) -> set[tuple[str, str]]:
    tags = (req.tag for req in requests)
    return {(tag.owner.client, tag.owner.agent) for tag in tags if tag is not None}
