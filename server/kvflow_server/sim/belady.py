"""How well could any policy do? The offline optimum of a sequence of prompts.

A pool holds so many tokens. The calls of a trace are served one at a time: all of a
prompt and of its answer must be in the pool while it is served, what of the prompt was
there before is a hit, and the rest is brought in, loaded or computed. In between a
policy keeps what it likes. Time plays no part: what is reported is tokens.

`belady` gives the fewest tokens that any policy must bring in, knowing the future.
`at_once` gives what a policy does bring in, with the production eviction order.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.config import EngineConfig
from kvflow_server.engine.trace import RecordedCall, RecordedSteps
from kvflow_server.policy.priority import Owner

from .cache import Cache, Tag
from .trace import Prompts, open_trace, update_of
from .tree import without_last

__all__ = ["HitRate", "Use", "at_once", "belady", "hit_rates", "uses_of"]


class Use(NamedTuple):
    """One call, as the optimum sees it."""

    blocks: Sequence[tuple[Hashable, int, int]]
    """(block, tokens of it that the call looks for, tokens of it when the answer is
    there), each block once, in the order of the text. The last token of a prompt is
    always computed, as in SGLang."""
    prompt: int
    """Tokens of the prompt."""
    tokens: int
    """Of prompt and answer."""


def belady(uses: Iterable[Use], pool: int) -> int:
    """Tokens of the prompts that the best policy finds in the pool, at most.

    Belady's rule: what is needed again last goes first, a block in part if that is
    enough. Keeping a token from one use to the next saves one token and takes one slot
    in between, so this is the largest set of intervals that fit a pool, less at each
    call what the call itself needs; for which the rule is optimal.

    It bounds every policy in the classic sense, which knows nothing of prefixes: a block
    may stay when those before it go. But where hashes are chained it is hardly loose for
    that. Whoever needs a block needs those before it too, so they are needed no later,
    and as ties go to the earlier block, what the rule keeps is closed under prefixes.
    All that can break this is what a call brings in whatever was kept: the last token of
    its prompt, and a text that is generated twice.

    O(n log n) for n blocks in all. Raises `ValueError` for a call that does not fit.
    """
    steps = list(uses)
    following = iter(_following(steps))
    kept: dict[Hashable, int] = {}
    """Tokens that wait for their next use, by block."""
    held = hits = 0
    farthest: list[tuple[int, int, int, Hashable]] = []
    """(-next use, -place in the prompt, tie, block). A use that has passed leaves its
    entry behind, which is at the end of the heap and so never seen while one counts."""
    for now, use in enumerate(steps):
        if use.tokens > pool:
            raise ValueError(f"call {now}: {use.tokens} tokens in a pool of {pool}")
        found = sum(kept.pop(block, 0) for block, _, _ in use.blocks)
        hits += found
        held = _shrink(farthest, kept, held - found, pool - use.tokens)
        for place, (block, _, _) in enumerate(use.blocks):
            then, tokens = next(following)
            if tokens:
                kept[block] = tokens
                held += tokens
                heapq.heappush(farthest, (-then, -place, now, block))
    return hits


def _following(steps: Sequence[Use]) -> list[tuple[int, int]]:
    """For each block of each call: the call that has it next, and how many of the tokens
    that are there now that one needs."""
    following = [(0, 0)] * sum(len(use.blocks) for use in steps)
    position = len(following)
    later: dict[Hashable, tuple[int, int]] = {}
    for now in range(len(steps) - 1, -1, -1):
        for block, needed, there in reversed(steps[now].blocks):
            position -= 1
            if block in later:
                then, wanted = later[block]
                following[position] = (then, min(there, wanted))
            later[block] = (now, needed)
    return following


def _shrink(
    farthest: list[tuple[int, int, int, Hashable]],
    kept: dict[Hashable, int],
    held: int,
    room: int,
) -> int:
    """Evict what is needed last until `room` is enough; the tokens then held."""
    while held > room:
        block = farthest[0][-1]
        there = kept.get(block, 0)
        gone = min(there, held - room)
        held -= gone
        if gone < there:
            kept[block] = there - gone
        else:
            kept.pop(block, None)
            heapq.heappop(farthest)
    return held


def uses_of(trace: Prompts) -> Iterable[Use]:
    """The calls of a trace. Raises `TraceError`."""
    for record in trace:
        if isinstance(record, RecordedCall):
            yield _use(record, trace.block)


def _use(call: RecordedCall, block: int) -> Use:
    needed = {name: stop for name, _, stop in without_last(call.spans(block))}
    whole = call.whole(block)
    blocks = [(name, needed.get(name, 0), stop) for name, _, stop in whole]
    return Use(blocks, call.prompt, call.prompt + max(call.output, 1))


_NO_TIME = Costs(
    name="none", layers=1, kv_bytes=1, bus_bytes_per_s=1, prefill_s=0,
    prefill_token_s=1, decode_s=0,
)  # fmt: skip


class AtOnce:
    """A device pool that serves calls one at a time and at once, by a policy."""

    def __init__(self, pool: int, config: EngineConfig | None) -> None:
        """`config` None is stock SGLang."""
        self.cache = Cache(_NO_TIME, pool, 0, config)
        self._answers = 0

    def tell(self, steps: RecordedSteps) -> None:
        self._now(steps.t)
        self.cache.apply_update(update_of(steps.update))

    def serve(self, call: RecordedCall, block: int) -> int:
        """Tokens of the prompt that were there."""
        cache, tree = self.cache, self.cache.tree_core
        self._now(call.t)
        tag = self._tag(call)
        prompt, output = call.spans(block), max(call.output, 1)
        path = tree.match(without_last(prompt))
        hits = sum(len(node.key) for node in path)
        if path:
            tree.lock(path[-1])
        room = cache.allocate(call.prompt - hits)
        node, unused = cache.insert(prompt, hits, 0, tag)
        cache.free(unused)
        tree.lock(node)
        if path:
            tree.unlock(path[-1])
        room = room and cache.allocate(output)
        assert room, f"{call.prompt} + {output} tokens do not fit"
        self._answers += 1
        answer = ("answer", self._answers)
        whole = call.whole(block) if call.answer else (*prompt, (answer, 0, output))
        _, unused = cache.insert(whole, call.prompt, call.prompt, tag)
        cache.free(unused)
        tree.unlock(node)
        return hits

    def _now(self, time: float) -> None:
        self.cache.clock.advance(time)
        self.cache.expire_when_due()

    def _tag(self, call: RecordedCall) -> Tag | None:
        if call.update is None:
            return None
        update = update_of(call.update, call.fixed)
        self.cache.apply_update(update)
        if update.agent is None:
            return None
        return Tag(Owner(update.client, update.run, update.agent), call.fixed)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Of a trace in one pool. Tokens are those of prompts; what was no hit was brought
    in."""

    pool: int
    calls: int
    too_long: int
    """Calls that do not fit; left out for every policy."""
    tokens: int
    lru: int
    """Hits of stock SGLang."""
    kvflow: int
    """Hits of KVFlow's order, with the metadata that the trace has."""
    belady: int
    """Hits of the optimum."""

    def rate(self, policy: str) -> float:
        """Hits of ``lru``, ``kvflow`` or ``belady`` over all prompt tokens."""
        return float(getattr(self, policy) / self.tokens) if self.tokens else 0.0

    @property
    def fetched_over_optimum(self) -> float:
        """What KVFlow brings in over what must be."""
        least = self.tokens - self.belady
        return (self.tokens - self.kvflow) / least if least else 1.0

    def to_dict(self) -> dict[str, object]:
        rates = {name: self.rate(name) for name in ("lru", "kvflow", "belady")}
        return asdict(self) | {
            "hit_rate": rates,
            "fetched_over_optimum": self.fetched_over_optimum,
        }


def at_once(trace: Prompts, pool: int, config: EngineConfig | None) -> int:
    """Hits of a policy in a pool of so many tokens, without host memory and without
    time. Calls that do not fit are left out. Raises `TraceError`."""
    server, hits = AtOnce(pool, config), 0
    for record in trace:
        if isinstance(record, RecordedSteps):
            server.tell(record)
        elif _fits(record, pool):
            hits += server.serve(record, trace.block)
    return hits


def hit_rates(path: Path, pools: Sequence[int]) -> list[HitRate]:
    """Stock LRU, KVFlow's order and the optimum on a trace, for pools of so many tokens.

    Raises `TraceError`, `OSError`.
    """
    trace = open_trace(path)
    rates = []
    for pool in pools:
        uses = [use for use in uses_of(trace) if use.tokens <= pool]
        rates.append(
            HitRate(
                pool=pool,
                calls=len(uses),
                too_long=sum(1 for _ in uses_of(trace)) - len(uses),
                tokens=sum(use.prompt for use in uses),
                lru=at_once(trace, pool, None),
                kvflow=at_once(trace, pool, EngineConfig()),
                belady=belady(uses, pool),
            )
        )
    return rates


def _fits(call: RecordedCall, pool: int) -> bool:
    return call.prompt + max(call.output, 1) <= pool
