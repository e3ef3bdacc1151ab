"""What the HTTP process keeps of the metadata that passes through it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import msgspec
from sglang.srt.runtime_context import get_observability, get_serving

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import (
    ACTION_TYPE,
    MAX_INFLATED_BYTES,
    StepUpdate,
    parse_envelope,
)
from kvflow_server.policy.intake import Intake

from .config import EngineConfig
from .counters import DroppedMetadata, reason_of
from .metrics import HttpMetrics

__all__ = [
    "check_in_band",
    "dropped",
    "harmless",
    "intake",
    "is_ours",
    "prewarms",
    "refuse",
    "refused",
]

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

refused: Counter[str] = Counter()
"""Out-of-band messages that were refused, by the field that was wrong."""


def refuse(field: str) -> None:
    """Count a refused message."""
    reason = reason_of(field)
    refused[reason] += 1
    if metrics := _metrics():
        metrics.refused(reason)


def _count_dropped(reason: str) -> None:
    if metrics := _metrics():
        metrics.dropped(reason)


@cache
def _metrics() -> HttpMetrics | None:
    # Asked for late: SGLang says where metrics go after it has read its flags.
    if not get_observability().enable_metrics:
        return None
    return HttpMetrics(str(get_serving().served_model_name))


dropped = DroppedMetadata(listener=_count_dropped)
"""In-band metadata that this process could not use."""


@cache
def intake() -> Intake:
    """The bounds of this process, made when it is first asked."""
    config = EngineConfig.from_env()
    return Intake(config.steps, config.intake)


@cache
def prewarms() -> bool:
    """Whether this server computes prompts before their agents run."""
    return EngineConfig.from_env().prewarm.enabled


def harmless(hook: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """A hook of this process that never raises: what it could not do is counted and
    logged once, and the call goes on as SGLang's (None changes nothing)."""

    @wraps(hook)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return hook(*args, **kwargs)
        except WireError as error:
            dropped.record_error(error)
        except Exception as error:
            dropped.record("internal", f"{type(error).__name__}: {error}")
            logger.debug("KVFlow hook failed", exc_info=True)
        return None

    return guarded


def is_ours(action: Any) -> bool:
    return bool(action.action_type == ACTION_TYPE)


def check_in_band(hints: Any) -> Sequence[StepUpdate]:
    """The updates that come with a request, noted in `intake`.

    They are read here once more than needed, before they reach the scheduler: what is
    too large shall not travel on. Raises `WireError`.
    """
    payloads = [action.payload for action in hints.actions if is_ours(action)]
    size = len(msgspec.msgpack.encode(payloads))
    if size > MAX_INFLATED_BYTES:
        raise WireError(
            f"kv_hints: {size} bytes for KVFlow, "
            f"at most {MAX_INFLATED_BYTES} are accepted",
            field="kv_hints",
            status=413,
        )
    updates = parse_envelope(hints)
    intake().note(updates, time.monotonic())
    return updates
