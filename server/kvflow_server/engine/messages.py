"""Control messages between the HTTP process and the scheduler, on SGLang's own IPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import BaseReq, hook_custom_types
from sglang.utils import TypeBasedDispatcher

from kvflow_sdk.wire import StepUpdate

from .cache import KVFlowCache
from .state import describe

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

__all__ = [
    "KVFlowStateReq",
    "KVFlowStateReqOutput",
    "KVFlowStepsReq",
    "add_handlers",
    "admit_types",
]


class KVFlowStepsReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """Step updates that came out of band; nothing is answered."""

    updates: list[StepUpdate]
    received_at: float
    """The HTTP process's monotonic clock, seconds; the host's processes share it."""


class KVFlowStateReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """Asks a scheduler what it knows and holds."""

    clients: int
    """How many to tell of, at most."""
    ids: bool
    """Whether by their ids; else as `wire.shown_client` says."""


class KVFlowStateReqOutput(BaseReq, kw_only=True):  # type: ignore[call-arg]
    state: dict[str, Any]
    """JSON values; the shape of ``GET /kvflow/v1/state``."""


def admit_types() -> None:
    """Let SGLang's IPC decoder of this process accept these messages."""
    hook_custom_types(KVFlowStepsReq, KVFlowStateReq, KVFlowStateReqOutput)


def add_handlers(_result: object, scheduler: Scheduler) -> None:
    """AFTER `Scheduler.init_request_dispatcher`: answer these messages."""

    def steps(request: KVFlowStepsReq) -> None:
        cache = scheduler.tree_cache
        if isinstance(cache, KVFlowCache):
            for update in request.updates:
                cache.apply_update(update)
            cache.counters.note_latency(time.monotonic() - request.received_at)

    def state(request: KVFlowStateReq) -> KVFlowStateReqOutput:
        cache = scheduler.tree_cache
        known = {}
        if isinstance(cache, KVFlowCache):
            known = describe(cache, clients=request.clients, ids=request.ids)
        return KVFlowStateReqOutput(state=known)

    scheduler._request_dispatcher += TypeBasedDispatcher(
        [(KVFlowStepsReq, steps), (KVFlowStateReq, state)]
    )
