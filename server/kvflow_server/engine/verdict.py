"""What to do with a waiting request, asked of `policy.admission` with what is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvflow_server.policy.admission import PathStatus, Verdict, decide
from kvflow_server.policy.estimates import computing_is_quicker, copy_is_hidden

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["verdict_on"]


def verdict_on(
    cache: KVFlowCache,
    *,
    loading: int,
    host_hit: int,
    wanted: int,
    other_ready: Callable[[], bool],
    room: Callable[[], bool],
    skips: int,
) -> Verdict:
    """The verdict on a request whose prefix is, in tokens, `loading` or only in host
    memory (`host_hit`), and which would compute `wanted` without either.

    `other_ready`, `room`, `skips`: as in `decide`; asked only where they matter.
    """
    if not cache.config.mode.prefetches:
        return Verdict.ADMIT
    worth_loading = host_hit >= cache.load_back_threshold
    if not loading and not worth_loading:
        return Verdict.ADMIT
    status = PathStatus(loading=loading, backed_up=host_hit if worth_loading else 0)
    speeds = cache.speeds
    bus, prefill = speeds.bus.value, speeds.prefill.value
    computed = wanted - status.backed_up
    quicker = computing_is_quicker(
        copied=status.backed_up, computed=computed, bus=bus, prefill=prefill
    )
    verdict = decide(
        status,
        other_ready=other_ready(),
        room=room(),
        computing_is_quicker=quicker,
        copy_is_hidden=copy_is_hidden(
            copied=speeds.tokens_on_bus + status.backed_up,
            computed=computed,
            bus=bus,
            prefill=prefill,
        ),
        skips=skips,
        limit=cache.config.max_skips,
    )
    if quicker and verdict in (Verdict.RECOMPUTE, Verdict.JOIN_AND_RECOMPUTE):
        speeds.copy_avoided()
    return verdict
