"""What to do with a waiting request, asked of `policy.admission` with what is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvflow_server.policy.admission import PathStatus, Verdict, decide
from kvflow_server.policy.estimates import computing_is_quicker, copy_is_hidden

if TYPE_CHECKING:
    from .cache import KVFlowCache
    from .speeds import Speeds

__all__ = ["Admitted", "verdict_on"]


class Admitted(NamedTuple):
    """What this pass has admitted so far, in tokens."""

    computed: int = 0
    copied: int = 0
    """On demand; the copy is submitted when the batch is complete."""


def verdict_on(
    cache: KVFlowCache,
    *,
    loading: int,
    host_hit: int,
    wanted: int,
    beside: Admitted,
    other_ready: Callable[[], bool],
    room: Callable[[], bool],
    skips: int,
) -> Verdict:
    """The verdict on a request whose prefix is, in tokens, `loading` or only in host
    memory (`host_hit`), and which would compute `wanted` without either.

    `beside`: what would be in the same batch. `other_ready`, `room`, `skips`: as in
    `decide`; asked only where they matter.
    """
    if not cache.config.mode.prefetches:
        return Verdict.ADMIT
    worth_loading = host_hit >= cache.load_back_threshold
    if not loading and not worth_loading:
        return Verdict.ADMIT
    path = PathStatus(loading=loading, backed_up=host_hit if worth_loading else 0)
    quicker, hidden = _weighed(cache.speeds, path, wanted, beside)
    verdict = decide(
        path,
        other_ready=other_ready(),
        room=room(),
        computing_is_quicker=quicker,
        copy_is_hidden=hidden,
        skips=skips,
        limit=cache.config.max_skips,
    )
    if quicker and verdict in (Verdict.RECOMPUTE, Verdict.JOIN_AND_RECOMPUTE):
        cache.speeds.copy_avoided()
    return verdict


def _weighed(
    speeds: Speeds, path: PathStatus, wanted: int, beside: Admitted
) -> tuple[bool, bool]:
    """Whether computing is quicker than copying, and whether the copy is hidden by it."""
    bus, prefill = speeds.bus.value, speeds.prefill.value
    computed = wanted - path.backed_up
    copied = speeds.tokens_on_bus + beside.copied + path.backed_up
    return (
        computing_is_quicker(path.backed_up, computed, bus, prefill),
        copy_is_hidden(
            copied, computed + beside.computed, bus, prefill, speeds.light.value
        ),
    )
