"""What happened, as numbers: the only thing that flows back from the engine."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, fields

__all__ = ["Counters", "DroppedMetadata"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Totals since the server started. Token counts are KV tokens."""

    step_updates: int = 0
    step_updates_stale: int = 0
    tagged_requests: int = 0
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
    recompute_tokens: int = 0
    """In host memory, computed again on purpose."""
    deferred_checkpoints: int = 0
    """Inserts put off because the path was still being loaded."""
    prefetch_refused: int = 0
    """Prefetches given up for want of room below their ceiling."""
    prefetch_too_late: int = 0
    """Prefetches put off because computing would be quicker than a late copy."""
    h2d_tokens: int = 0
    """Copied from host memory to the device, for whatever reason."""
    h2d_bytes: int = 0
    d2h_tokens: int = 0
    """Backed up to host memory."""
    d2h_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(slots=True)
class DroppedMetadata:
    """In-band metadata that could not be used: counted, and logged once per reason."""

    reasons: Counter[str] = field(default_factory=Counter)

    def record(self, reason: str, detail: str) -> None:
        """`reason` is a short stable name (the field), `detail` a sentence."""
        if not self.reasons[reason]:
            logger.warning(
                "KVFlow metadata dropped, the call is served without it: %s "
                "(further ones of this kind are only counted)",
                detail,
            )
        self.reasons[reason] += 1
