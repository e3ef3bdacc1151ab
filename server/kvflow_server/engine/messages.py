"""Control messages between the HTTP process and the scheduler, on SGLang's own IPC."""

from __future__ import annotations

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


class KVFlowStateReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """Asks a scheduler what it knows and holds."""


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

    def state(_request: KVFlowStateReq) -> KVFlowStateReqOutput:
        cache = scheduler.tree_cache
        known = describe(cache) if isinstance(cache, KVFlowCache) else {}
        return KVFlowStateReqOutput(state=known)

    scheduler._request_dispatcher += TypeBasedDispatcher(
        [(KVFlowStepsReq, steps), (KVFlowStateReq, state)]
    )
