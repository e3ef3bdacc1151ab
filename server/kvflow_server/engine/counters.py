"""What happened, as numbers: the only thing that flows back from the engine."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from kvflow_sdk.errors import WireError

__all__ = ["Counters", "DroppedMetadata", "Hits", "reason_of"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Hits:
    """Prompt tokens of admitted requests, by where their KV was."""

    device: int = 0
    host: int = 0
    """Loaded from host memory because the request needed them."""
    recomputed: int = 0

    def add(self, start: int, stop: int, ends: tuple[int, int, int]) -> None:
        """Count [start, stop) of a prompt whose tiers end at `ends`, in this order."""
        device, host, recomputed = (
            max(0, min(stop, end) - max(start, begin))
            for begin, end in zip((0, *ends), ends, strict=False)
        )
        self.device += device
        self.host += host
        self.recomputed += recomputed

    def as_dict(self) -> dict[str, int]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(slots=True)
class Counters:
    """Totals since the server started. Token counts are KV tokens."""

    step_messages: int = 0
    """Out-of-band messages that arrived."""
    step_latency_s: float = 0.0
    """Seconds from their arrival at the HTTP process until they were applied."""
    step_updates: int = 0
    step_updates_stale: int = 0
    tagged_requests: int = 0
    fixed: Hits = field(default_factory=Hits)
    """Of the fixed prompts of tagged requests."""
    dynamic: Hits = field(default_factory=Hits)
    """Of what follows the fixed prompt in tagged requests."""
    untagged: Hits = field(default_factory=Hits)
    """Of requests that KVFlow knows nothing about."""
    load_on_demand_tokens: int = 0
    """Loads that started because a request needed them, prefetch or not."""
    prefetch_tokens: int = 0
    prefetch_used_tokens: int = 0
    prefetch_unused_tokens: int = 0
    """Prefetched, and evicted before any request used them."""
    late_join_tokens: int = 0
    """Still in flight when the request that needed them was admitted."""
    skipped_passes: int = 0
    """Times a request was passed over while its prefix loaded."""
    skipped_requests: int = 0
    skipped_s: float = 0.0
    """Seconds from requests' first skips to their admissions."""
    recompute_tokens: int = 0
    """In host memory, computed again on purpose."""
    deferred_checkpoints: int = 0
    """Inserts put off because the path was still being loaded."""
    awaited_copies: int = 0
    """Copies in flight that the scheduler waited for, because memory was short."""
    prefetch_refused: int = 0
    """Prefetches given up for want of room below their ceiling."""
    prefetch_too_late: int = 0
    """Prefetches put off because computing would be quicker than a late copy."""
    prewarm_prompts: int = 0
    """Fixed prompts that were computed before their agents ran."""
    prewarm_tokens: int = 0
    """Computed for them while nobody needed the device."""
    prewarm_refused: int = 0
    """Prompts that were not taken in, for a bound."""
    internal_errors: int = 0
    """Errors in KVFlow's own code (`guard`); what it was about was done as SGLang does."""
    h2d_tokens: int = 0
    """Copied from host memory to the device, for whatever reason."""
    h2d_bytes: int = 0
    d2h_tokens: int = 0
    """Backed up to host memory."""
    d2h_bytes: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    """Those of `step_latency_s` that the metrics have not seen yet."""

    def note_latency(self, seconds: float) -> None:
        self.step_messages += 1
        self.step_latency_s += seconds
        self.latencies.append(seconds)

    def as_dict(self) -> dict[str, int | float]:
        """Flat: the hits are ``fixed_device_tokens`` and so on."""
        flat: dict[str, int | float] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Hits):
                for tier, tokens in value.as_dict().items():
                    flat[f"{item.name}_{tier}_tokens"] = tokens
            elif isinstance(value, int | float):
                flat[item.name] = value
        return flat


@dataclass(slots=True)
class DroppedMetadata:
    """In-band metadata that could not be used: counted, and logged once per reason."""

    reasons: Counter[str] = field(default_factory=Counter)
    listener: Callable[[str], None] | None = None
    """Told each reason as it is counted."""

    def record(self, reason: str, detail: str) -> None:
        """`reason` is a short stable name (the field), `detail` a sentence."""
        if not self.reasons[reason]:
            logger.warning(
                "KVFlow metadata dropped, the call is served without it: %s "
                "(further ones of this kind are only counted)",
                detail,
            )
        self.reasons[reason] += 1
        if self.listener is not None:
            self.listener(reason)

    def record_error(self, error: WireError) -> None:
        """Counted by `reason_of` its field."""
        self.record(reason_of(error.field), str(error))


def reason_of(field: str) -> str:
    """The field without the key in it: a bounded set of names to count by."""
    return field.partition("[")[0]
