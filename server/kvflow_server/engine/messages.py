"""What KVFlow's parts send each other on SGLang's own IPC.

Types only: every process of the server must be able to decode them, and most of them
have no cache (`handlers` says what a scheduler does with each).
"""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.io_struct import BaseReq, hook_custom_types

from kvflow_sdk.wire import StepUpdate

__all__ = [
    "KVFlowPrewarmReq",
    "KVFlowStateReq",
    "KVFlowStateReqOutput",
    "KVFlowStepsReq",
    "KVFlowTick",
    "admit_types",
]


class KVFlowStepsReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """Step updates that came out of band; nothing is answered."""

    updates: list[StepUpdate]
    received_at: float
    """The HTTP process's monotonic clock, seconds; the host's processes share it."""


class KVFlowPrewarmReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """A fixed prompt that may be computed before its agent runs; nothing is answered."""

    client: str
    agent: str
    steps: dict[str, int]
    """Steps of the client's agents at the start of a run."""
    tokens: bytes
    """Token ids, 8 bytes each, in the host's order."""
    extra_key: str | None = None
    cache_salt: str | None = None


class KVFlowStateReq(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """Asks a scheduler what it knows and holds."""

    clients: int
    """How many to tell of, at most."""
    ids: bool
    """Whether by their ids; else as `wire.shown_client` says."""


class KVFlowStateReqOutput(BaseReq, kw_only=True):  # type: ignore[call-arg]
    state: dict[str, Any]
    """JSON values; the shape of ``GET /kvflow/v1/state``."""


class KVFlowTick(BaseReq, kw_only=True):  # type: ignore[call-arg]
    """The first rank's time, for all of them."""

    now: float
    """Its monotonic clock, seconds."""


def admit_types() -> None:
    """Let SGLang's IPC decoder of this process accept these messages."""
    hook_custom_types(
        KVFlowStepsReq,
        KVFlowPrewarmReq,
        KVFlowStateReq,
        KVFlowStateReqOutput,
        KVFlowTick,
    )
