"""What reaches a scheduler besides requests: steps, questions, and the time."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_parallel
from sglang.utils import TypeBasedDispatcher

from .cache import KVFlowCache
from .messages import (
    KVFlowPrewarmReq,
    KVFlowStateReq,
    KVFlowStateReqOutput,
    KVFlowStepsReq,
    KVFlowTick,
)
from .recording import Recorder
from .state import describe

__all__ = ["add_handlers", "append_tick", "take_ticks"]

logger = logging.getLogger(__name__)


def add_handlers(_result: object, scheduler: Any) -> None:
    """AFTER `Scheduler.init_request_dispatcher`: answer these messages."""

    def steps(request: KVFlowStepsReq) -> None:
        cache = scheduler.tree_cache
        if isinstance(cache, KVFlowCache):
            for update in request.updates:
                cache.apply_update(update)
            if cache.recorder is not None:
                with cache.guard:
                    cache.recorder.note_steps(request.updates)
            with cache.guard:
                cache.counters.note_latency(time.monotonic() - request.received_at)

    def prewarm(request: KVFlowPrewarmReq) -> None:
        cache = scheduler.tree_cache
        if isinstance(cache, KVFlowCache):
            with cache.guard:
                cache.prewarmer.take(request)

    def state(request: KVFlowStateReq) -> KVFlowStateReqOutput:
        cache = scheduler.tree_cache
        known = {}
        if isinstance(cache, KVFlowCache):
            with cache.guard:
                known = describe(cache, clients=request.clients, ids=request.ids)
        return KVFlowStateReqOutput(state=known)

    if isinstance(scheduler.tree_cache, KVFlowCache):
        _start_recording(scheduler.tree_cache)
    scheduler._request_dispatcher += TypeBasedDispatcher(
        [
            (KVFlowStepsReq, steps),
            (KVFlowPrewarmReq, prewarm),
            (KVFlowStateReq, state),
        ]
    )


def _start_recording(cache: KVFlowCache) -> None:
    """On the first rank of each replica, which sees what the others see."""
    here = get_parallel()
    recording = cache.config.record
    if recording is None or here.pp_rank or here.attn_tp_rank or here.attn_cp_rank:
        return
    if replica := here.dp_rank:
        path = Path(recording.path)
        path = path.with_name(f"replica-{replica}-{path.name}")
        recording = replace(recording, path=str(path))
    with cache.guard:
        cache.recorder = Recorder(recording)
        logger.info("Recording to %s", recording.path)


def append_tick(aborts: list[Any], scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Scheduler._poll_timeout_aborts`, which runs on the first rank only and
    whose list is broadcast with the requests: send the time along."""
    cache = scheduler.tree_cache
    if not isinstance(cache, KVFlowCache):
        return
    with cache.guard:
        now = time.monotonic()
        running = scheduler.running_batch.reqs
        busy = bool(cache.loads.active or scheduler.waiting_queue or running)
        if cache.clock.due(now, busy=busy):
            aborts.append(KVFlowTick(now=now))


def take_ticks(
    scheduler: Any, recv_reqs: list[Any], *_args: Any, **_kwargs: Any
) -> None:
    """BEFORE `Scheduler.process_input_requests`, on every rank: set the clock before
    the requests that came with it are looked at."""
    cache = scheduler.tree_cache
    if not isinstance(cache, KVFlowCache):
        return
    with cache.guard:
        ticks = [item for item in recv_reqs if isinstance(item, KVFlowTick)]
        for tick in ticks:  # first of all: SGLang knows no such message
            recv_reqs.remove(tick)
        for tick in ticks:
            cache.clock.advance(tick.now)
        cache.prewarmer.begin(scheduler, recv_reqs)
    if scheduler._engine_paused and cache.loads.active:
        # The scheduler's loop stops before the place where copies are acknowledged.
        cache.loading_check()
