"""Computes fixed prompts of agents that have not run yet, while nobody needs the device.

A prompt is computed piece by piece, each piece a request of the scheduler's own without
any output, which ends where a node of the prompt ends. A piece is begun only when no
request waits or runs, and none has for a moment; one that comes meanwhile waits for that
piece and no longer. What a piece displaces goes before every prompt that a live run will
reach.

All ranks see the same requests, the same queue and the same clock, so they begin the
same piece in the same pass.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.io_struct import FlushCacheReqInput, TokenizedGenerateReqInput
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.sampling.sampling_params import SamplingParams

from kvflow_server.policy.prefetch import Room
from kvflow_server.policy.prewarm import Prewarm, PrewarmQueue
from kvflow_server.policy.priority import (
    EvictionClass,
    EvictionKey,
    Owner,
    prompt_rank,
)
from kvflow_server.policy.steps import Outcome

from .hints import RequestTag
from .inserts import prompt_digest
from .messages import KVFlowPrewarmReq, KVFlowStateReq

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["Prewarmer", "is_prewarm"]

_RID = f"{HEALTH_CHECK_RID_PREFIX}_kvflow_prewarm"
"""SGLang expects no one to wait for a request of this name, and counts it nowhere."""
_RUN = "prewarm"
_FLUSH_WAIT_S = 5.0
_IDLE_TALK = (KVFlowPrewarmReq, KVFlowStateReq)
_EARLIEST = float("-inf")


def is_prewarm(req: Any) -> bool:
    """Whether a request of the scheduler's is a piece of a prompt computed ahead."""
    return bool(req.rid.startswith(_RID))


class Prewarmer:
    """The waiting prompts of one scheduler, and the piece that is being computed."""

    def __init__(self, cache: KVFlowCache) -> None:
        self._cache = cache
        self.queue = PrewarmQueue(cache.config.prewarm)
        self._out: _Piece | None = None
        self._pieces = 0
        self._busy_at = 0.0
        self._planned_at: tuple[int, ...] = ()

    def take(self, message: KVFlowPrewarmReq) -> None:
        """A client asks for a prompt of one of its agents."""
        cache = self._cache
        if not self.queue.limits.enabled:
            return
        now = cache.clock.now
        if cache.table.expect(message.client, message.steps, now) is Outcome.OVER_CAP:
            cache.dropped.record("prewarm", "prewarm: no room for another client")
            return
        cache.accounts.touch(message.client)
        tokens = array("q")
        tokens.frombytes(message.tokens)
        whole = len(tokens) // cache.page_size * cache.page_size
        if not whole:
            return
        refusal = self.queue.add(
            Prewarm(
                message.client,
                message.agent,
                tokens[:whole],
                message.extra_key,
                message.cache_salt,
            )
        )
        if refusal is not None:
            cache.counters.prewarm_refused += 1
            cache.dropped.record("prewarm", f"prewarm: {refusal}")

    def note_pass(self, *, busy: bool) -> None:
        """A scheduler pass has ended; `busy` with requests other than ours."""
        if busy:
            self._busy_at = self._cache.clock.now

    def begin(self, scheduler: Any, received: list[Any]) -> None:
        """Put the next piece among the `received` requests if there is nothing else."""
        if self._out is not None:
            _let_flushes_wait(received)
        if not all(isinstance(message, _IDLE_TALK) for message in received):
            # Work, or the news that an agent started and will soon call.
            self._busy_at = self._cache.clock.now
            return
        if not (self.queue or self._out) or not _is_idle(scheduler):
            return
        self._settle()
        now = self._cache.clock.now
        if now - self._busy_at < self.queue.limits.idle_s or not self.queue:
            return
        stamp = self._stamp()
        if stamp == self._planned_at:
            return
        piece = self._next(scheduler)
        if piece is None:
            self._planned_at = stamp
            return
        self._out = piece
        self._pieces += 1
        received.append(piece.request(f"{_RID}_{self._pieces}"))

    def tag_of(self, rid: str) -> RequestTag | None:
        """The tag of the piece that is being computed."""
        piece = self._out
        if piece is None or not rid.endswith(f"_{self._pieces}"):
            return None
        entry = piece.entry
        owner = Owner(entry.client, _RUN, entry.agent)
        return RequestTag(
            owner, fixed_tokens=piece.end, extends=piece.extends, suffix_hits=1
        )

    def withdraw(self, waiting: list[Any]) -> None:
        """A piece that was not admitted at once makes way: it is tried again."""
        if self._out is not None:
            waiting[:] = [req for req in waiting if not is_prewarm(req)]

    def drop_client(self, client: str) -> None:
        self.queue.drop_client(client)

    def as_dict(self) -> dict[str, int]:
        """Prompts that wait, the one being computed included."""
        return {
            "waiting": len(self.queue),
            "computing": int(self._out is not None),
        }

    def _settle(self) -> None:
        """The scheduler is idle: what became of the last piece."""
        piece, self._out = self._out, None
        if piece is None:
            return
        if self._held(piece.entry) < piece.end:
            self.queue.fail(piece.entry)
            return
        computed = piece.end - piece.start
        self.queue.spend(piece.entry, computed)
        self._cache.counters.prewarm_tokens += computed
        if piece.end == len(piece.entry.tokens):
            self.queue.remove(piece.entry)
            self._cache.counters.prewarm_prompts += 1

    def _next(self, scheduler: Any) -> _Piece | None:
        for entry in self.queue.nearest_first(self._steps):
            if len(entry.tokens) >= scheduler.max_req_input_len or self._is_known(
                entry
            ):
                self.queue.remove(entry)
                continue
            piece = self._piece(entry)
            if self._fits(entry, piece.end - piece.start):
                return piece
        return None

    def _piece(self, entry: Prewarm) -> _Piece:
        held = self._held(entry)
        last = len(entry.tokens)
        ends = self._cache.cuts(last, last)
        end = next((cut for cut in ends if cut > held), last)
        done = [cut for cut in ends if cut < end]
        return _Piece(entry, min(held, end), end, extends=done[-1] if done else 0)

    def _held(self, entry: Prewarm) -> int:
        """Tokens of the prompt that the tree holds, on the device or in host memory."""
        tree = self._cache.tree_core
        key = RadixKey(
            entry.tokens,
            entry.extra_key,
            is_bigram=tree.is_eagle,
            cache_salt=entry.cache_salt,
        ).page_aligned(self._cache.page_size)
        return tree.missing_boundaries(key, ())[0]

    def _is_known(self, entry: Prewarm) -> bool:
        """The agent has run meanwhile, with this very prompt."""
        digest = prompt_digest(entry.tokens, entry.extra_key, entry.cache_salt)
        handles = self._cache.prompts.handles(entry.client, entry.agent)
        return any(handle.digest == digest for handle in handles)

    def _fits(self, entry: Prewarm, tokens: int) -> bool:
        cache = self._cache
        ceiling = self._ceiling(entry)
        room = Room(
            free=cache.token_to_kv_pool_allocator.available_size(),
            unlocked=cache.evictable_size(),
            reserve=0,
        )
        return room.takes(
            # A page more: the piece's last one may be begun by another request.
            tokens + cache.page_size,
            lambda enough: cache.full_component.displaceable(
                ceiling, entry.client, enough
            ),
        )

    def _ceiling(self, entry: Prewarm) -> EvictionKey:
        """What goes for the piece comes before this in the eviction order.

        With host memory a prompt that no live run reaches may leave the device for
        another one's sake: both are there when their agents come.
        """
        cache = self._cache
        order = cache.config.mode.order
        rank = prompt_rank(cache.table, order, entry.client, entry.agent)
        if rank.group is EvictionClass.FIXED:
            return EvictionKey(*rank, _EARLIEST)
        if cache.cache_controller is not None:
            return EvictionKey(EvictionClass.FIXED, _EARLIEST, _EARLIEST)
        nearness = -self._steps(entry.client, entry.agent)
        return EvictionKey(EvictionClass.RETAINED, nearness, _EARLIEST)

    def _steps(self, client: str, agent: str) -> float:
        table = self._cache.table
        steps = table.steps(client, agent)
        if steps is None:
            steps = table.steps_of_next_run(client, agent)
        return float("inf") if steps is None else steps

    def _stamp(self) -> tuple[int, ...]:
        """Equal stamps: looking again would find nothing to do, as before."""
        cache = self._cache
        return (
            cache.table.version,
            self.queue.version,
            cache.evictable_size(),
            cache.token_to_kv_pool_allocator.available_size(),
        )


class _Piece:
    """[start, end) of a prompt; what the prompt's end was so far is at `extends`."""

    __slots__ = ("end", "entry", "extends", "start")

    def __init__(self, entry: Prewarm, start: int, end: int, *, extends: int) -> None:
        self.entry = entry
        self.start = start
        self.end = end
        self.extends = extends

    def request(self, rid: str) -> TokenizedGenerateReqInput:
        params = SamplingParams(max_new_tokens=0, temperature=0.0)
        params.normalize(None)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text=None,
            input_ids=self.entry.tokens[: self.end],
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            extra_key=self.entry.extra_key,
            cache_salt=self.entry.cache_salt,
        )


def _is_idle(scheduler: Any) -> bool:
    return bool(
        scheduler.is_fully_idle(for_health_check=True)
        and not scheduler._engine_paused
        and not scheduler.grammar_manager.grammar_queue
    )


def _let_flushes_wait(received: list[Any]) -> None:
    """SGLang refuses to flush while it computes; nobody knows of our piece."""
    for request in received:
        if isinstance(request, FlushCacheReqInput) and not request.timeout_s:
            request.timeout_s = _FLUSH_WAIT_S
