"""With several replicas of the model, a step update in band reaches one of them.

Whichever replica the next agent's call goes to must know what the workflow does. So
the process that takes the requests tells all of them; the one that also gets the
request drops what it knows already by its sequence number.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from sglang.srt.runtime_context import get_parallel

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import ACTION_TYPE, parse_envelope

from .gate import harmless
from .messages import KVFlowStepsReq

__all__ = ["merge_states", "tell_all_replicas"]


@harmless
def tell_all_replicas(
    tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any
) -> None:
    """AFTER `TokenizerManager._create_tokenized_object`."""
    hints = getattr(tokenized, "kv_hints", None)
    if hints is None or get_parallel().num_dp_ranks < 2:
        return
    if all(action.action_type != ACTION_TYPE for action in hints.actions):
        return
    try:
        updates = parse_envelope(hints)
    except WireError:
        # The replica that gets the request counts it.
        return
    news = [
        msgspec.structs.replace(update, agent=None, fixed=None)
        for update in updates
        if update.steps is not None or update.final
    ]
    if news:
        manager._dispatch_to_scheduler(
            KVFlowStepsReq(updates=news, received_at=time.monotonic())
        )


def merge_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state report for all replicas: pools and counts are sums over them, all else
    is the first one's, and ``replicas`` holds each whole."""
    if len(states) == 1:
        return states[0]
    merged = dict(states[0])
    for name in ("pool", "counters", "dropped_metadata", "evicted_tokens"):
        total: dict[str, int] = {}
        for state in states:
            for key, value in state[name].items():
                total[key] = total.get(key, 0) + value
        merged[name] = total
    wrong = [s["integrity"] for s in states if s.get("integrity", "ok") != "ok"]
    if wrong:
        merged["integrity"] = "; ".join(wrong)
    return {**merged, "replicas": states}
