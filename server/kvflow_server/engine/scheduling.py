"""Status-aware admission inside SGLang's scheduler (`policy.admission` decides)."""

from __future__ import annotations

from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.schedule_policy import (
    CLIP_MAX_NEW_TOKENS,
    AddReqResult,
    PrefillAdder,
)

from kvflow_server.policy.admission import Verdict

from .accounts import note_admission, note_skip
from .cache import KVFlowCache
from .hints import read_request_hints, tag_of
from .metrics import publish_when_due
from .prewarming import is_prewarm
from .states import read_early
from .tree import state_of
from .verdict import Admitted, verdict_on

__all__ = [
    "KVFlowPrefillAdder",
    "after_pass",
    "before_flush",
    "choose_adder",
    "tag_request",
]


class KVFlowPrefillAdder(PrefillAdder):
    """`PrefillAdder` that looks at where a request's prefix stands first."""

    tree_cache: KVFlowCache
    _copied = 0
    """Tokens that this batch loads on demand."""

    def add_one_req(
        self, req: Any, has_chunked_req: bool, truncation_align_size: int | None
    ) -> AddReqResult:
        if is_prewarm(req):
            return super().add_one_req(req, has_chunked_req, truncation_align_size)
        cache = self.tree_cache
        verdict, operations = self._look_at(req)
        if verdict in (Verdict.SKIP, Verdict.LOAD_AND_SKIP):
            with cache.guard:
                return self._skip(req, load=verdict is Verdict.LOAD_AND_SKIP)
            cache.drain_loads()
        recomputed = 0
        if verdict in (Verdict.RECOMPUTE, Verdict.JOIN_AND_RECOMPUTE):
            recomputed, req.host_hit_length = req.host_hit_length, 0
            req.best_match_node = req.last_node
        result = super().add_one_req(req, has_chunked_req, truncation_align_size)
        if self.can_run_list and self.can_run_list[-1] is req:
            self._join(req, operations)
            with cache.guard:
                self._copied += req.host_loaded_length
                cache.counters.recompute_tokens += recomputed
                note_admission(cache, req, recomputed)
                self._note_admission(req)
        return result

    def _look_at(self, req: Any) -> tuple[Verdict, list[Any]]:
        """What to do with the request, and the copies in flight that it needs."""
        cache = self.tree_cache
        with cache.guard:
            operations = cache.loads.on_path(cache.path_of(req))
            return self._decide(req, operations), operations
        # What its path waits for is unknown, so let it wait for nothing.
        cache.drain_loads()
        return Verdict.ADMIT, []

    def _join(self, req: Any, operations: list[Any]) -> None:
        """The batch waits for these copies layer by layer."""
        cache = self.tree_cache
        if not operations:
            return
        with cache.guard:
            cache.counters.late_join_tokens += sum(
                len(node.key) for node in cache.path_of(req) if state_of(node).load
            )
            cache.loads.join(operations)
            return
        cache.drain_loads()

    def _decide(self, req: Any, operations: list[Any]) -> Verdict:
        wanted = len(req.full_untruncated_fill_ids) - req.prefix_len
        return verdict_on(
            self.tree_cache,
            loading=sum(operation.tokens for operation in operations),
            host_hit=req.host_hit_length,
            wanted=wanted,
            beside=Admitted(self.log_input_tokens, self._copied),
            other_ready=self._other_ready,
            room=lambda: self._has_room(req, wanted),
            skips=getattr(req, "kvflow_skips", 0),
        )

    def _has_room(self, req: Any, wanted: int) -> bool:
        """Whether `wanted` tokens and the answer fit: a copy for a request that cannot
        be admitted would only be in the way of those that must end first."""
        left = req.sampling_params.max_new_tokens - len(req.output_ids)
        answer = min(max(left, 0), CLIP_MAX_NEW_TOKENS)
        return bool(self.rem_total_tokens > wanted + answer + self.page_size)

    def _other_ready(self) -> bool:
        """Whether the device has something to do besides this request.

        A request further back in the queue may be ready too. That is known only when
        a pass has ended with nothing to run (`after_pass`), unless there is none.
        """
        if self.preempt_list:
            # Others were stopped to make room for this very request.
            return False
        if self.can_run_list:
            return True
        if self.running_batch is not None and self.running_batch.reqs:
            return True
        return self.waiting_queue_len > 1 and not self.tree_cache.starved

    def _note_admission(self, req: Any) -> None:
        cache = self.tree_cache
        cache.prefetcher.note_use(cache.path_of(req))
        tag = tag_of(req)
        req.kvflow_skips = 0
        if tag is not None and req.host_loaded_length:
            cache.prefetcher.accounts.missed(tag.owner.client, tag.owner.agent)

    def _skip(self, req: Any, *, load: bool) -> AddReqResult:
        cache = self.tree_cache
        req.kvflow_skips = getattr(req, "kvflow_skips", 0) + 1
        note_skip(cache, req, load=load)
        if load:
            tag = tag_of(req)
            owner = (tag.owner.client, tag.owner.agent) if tag is not None else None
            cache.loads.demand[req.rid] = (req.best_match_node, owner)
        return AddReqResult.CONTINUE


def choose_adder(stock: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> Any:
    """AFTER `Scheduler.get_prefill_adder_class`."""
    chosen = isinstance(scheduler.tree_cache, KVFlowCache)
    return KVFlowPrefillAdder if chosen else stock


def tag_request(
    req: Any, scheduler: Any, recv_req: Any, *_args: Any, **_kwargs: Any
) -> None:
    """AFTER `Scheduler._create_generation_req`: read the request's metadata."""
    cache = scheduler.tree_cache
    if not isinstance(cache, KVFlowCache):
        return
    with cache.guard:
        if is_prewarm(req):
            req.kvflow_tag = cache.prewarmer.tag_of(req.rid)
            req.finished_output = True  # nobody waits for one
        else:
            updates = read_request_hints(cache, req, recv_req)
            if cache.recorder is not None and not _is_health_check(req):
                cache.recorder.note_call(req, updates)


def after_pass(plan: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Scheduler.get_next_batch_to_run`: start what the next passes will need.

    Runs on idle passes too, after the batch's own load was submitted and its slots
    allocated, before it is launched.
    """
    cache = scheduler.tree_cache
    if not isinstance(cache, KVFlowCache):
        return
    running = plan.running_batch.reqs
    # A batch that decodes is the running batch itself, and shall not count twice.
    to_run = plan.batch_to_run if plan.batch_to_run is not plan.running_batch else None
    batch = to_run.reqs if to_run is not None else []
    waiting = scheduler.waiting_queue
    with cache.guard:
        cache.prewarmer.withdraw(waiting)
        cache.prewarmer.note_pass(busy=_serves([*running, *batch, *waiting]))
        if cache.copy_ended:
            # A full batch was so with the memory that the copy held.
            plan.running_batch.batch_is_full = cache.copy_ended = False
        cache.starved = not batch and not running and bool(waiting)
        cache.expire_when_due()
        cache.speeds.pass_ended(plan.batch_to_run)
        cache.prefetcher.run(
            busy=lambda: _agents([*running, *batch, *waiting]),
            reserve=lambda: _decode_reserve(scheduler, [*running, *batch]),
            computing=bool(running or batch),
        )
        publish_when_due(cache, scheduler)
        cache.collector.after_pass(
            cache.tree_core.nodes_born, idle=not (batch or running or waiting)
        )
    if cache.recorder is not None:
        with cache.guard:
            cache.recorder.after_pass([*running, *batch, *waiting])
    cache.overhead.end_pass(busy=bool(batch or running or waiting))
    if cache.config.debug:
        cache.check_integrity()
        read_early(cache.tree_core, [*running, *batch])


def before_flush(scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """BEFORE `Scheduler.flush_cache`: let prefetches in flight end, or SGLang would
    refuse to flush for their sake; also while paused, when nothing polls them."""
    cache = scheduler.tree_cache
    if isinstance(cache, KVFlowCache):
        with cache.guard:
            cache.drain_loads()


def _is_health_check(req: Any) -> bool:
    return bool(req.rid.startswith(HEALTH_CHECK_RID_PREFIX))


def _serves(requests: list[Any]) -> bool:
    """Whether anybody waits for one of them."""
    return any(not is_prewarm(req) for req in requests)


def _agents(requests: list[Any]) -> set[tuple[str, str]]:
    tags = (tag_of(req) for req in requests)
    return {(tag.owner.client, tag.owner.agent) for tag in tags if tag is not None}


def _decode_reserve(scheduler: Any, requests: list[Any]) -> int:
    """Tokens that running requests may still write, by SGLang's own estimate."""
    left = sum(
        max(0, req.sampling_params.max_new_tokens - len(req.output_ids))
        for req in requests
    )
    return int(left * scheduler.new_token_ratio_tracker.current)
