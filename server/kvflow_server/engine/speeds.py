"""Counts what crosses the bus, and measures how fast: copies, and prefill beside them.

By the clock that all ranks share, so that what is decided by it is decided alike. That
clock moves once per scheduler pass, and a copy's arrival is noticed at the next one,
which may be much later than it took. So what counts is how long it was certainly not
there: the bus is never taken for slower than it is, nor prefill for faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvflow_server.policy.estimates import Rate

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["Speeds"]

_LEAST_PREFILL = 256
"""Tokens of a batch that says something about the speed of prefill. A smaller one takes
as long as one pass over the weights, and would make computing look slow."""


_AVOIDED_PER_SAMPLE = 8
_LONGEST_PASS = 1024
"""Tokens. What a pass does besides waiting for a copy takes no longer than computing so
many, or as many as are in it."""


@dataclass(slots=True)
class _Watch:
    """Of one kind of prefill batches one at a time is watched until its first request
    has an answer."""

    rate: Rate
    _req: Any = None
    _amount: int = 0
    _since: float = 0.0

    def begin(self, req: Any, amount: int, now: float) -> None:
        """The batch of `req` begins; passed over while another is watched."""
        if self._req is None:
            self._req, self._amount, self._since = req, amount, now

    def look(self, now: float) -> None:
        req = self._req
        if req is not None and (req.output_ids or req.finished()):
            self.rate.took_at_most(self._amount, now - self._since)
            self._req = None

    def clear(self) -> None:
        self._req = None


class Speeds:
    """Of one cache. All calls come from the scheduler thread."""

    def __init__(self, cache: KVFlowCache) -> None:
        self._cache = cache
        # Each sample errs in favour of the copy, which is what stock SGLang would do: by
        # much, where a copy arrives within a long pass. So the lowest but two speaks.
        self.bus = Rate(quantile=0.125)
        """Host to device, tokens per second."""
        self.prefill = Rate(quantile=0.25)
        """Tokens computed per second."""
        self.light = Rate(quantile=0.75)
        """Prefill passes of few tokens, per second: each reads the weights once. Most
        begin while something else is computed, and seem to take longer."""
        self._heavy_ones, self._light_ones = _Watch(self.prefill), _Watch(self.light)
        self._bus_since = 0.0
        """When the copies that are on the bus now began to be all it did."""
        self._unfinished_at = 0.0
        """When the oldest of them was last seen under way."""
        self._computed = 0
        """Tokens of the batches since then."""
        self._waited = False
        """One of those batches has waited for a copy, layer by layer."""
        self._avoided = 0
        """Copies that were not made for the bus's sake."""

    def as_dict(self) -> dict[str, float | None]:
        """JSON values; None is unknown, or too fast to measure."""
        bus, light = self.bus.value, self.light.value
        return {
            "bus_tokens_per_s": None if bus == math.inf else bus,
            "prefill_tokens_per_s": self.prefill.value,
            "light_pass_s": None if light is None else 1 / light,
        }

    @property
    def tokens_on_bus(self) -> int:
        """Tokens on their way to the device."""
        return sum(ack.num_tokens for ack in self.loads_on_bus())

    def loads_on_bus(self) -> Sequence[Any]:
        """SGLang's acknowledgements that are still to come, oldest first."""
        controller = self._cache.cache_controller
        return () if controller is None else tuple(controller.ack_load_queue)

    def load_started(self) -> None:
        """A copy to the device was just submitted."""
        if len(self._cache.cache_controller.ack_load_queue) == 1:
            self._bus_is_this(self._cache.clock.now)
            self._unfinished_at = self._cache.clock.now

    def loads_seen(self, before: Sequence[Any]) -> None:
        """Acknowledgements were taken in; `before` is what was on the bus until now."""
        left = len(self.loads_on_bus())
        arrived = before[: len(before) - left]
        now = self._cache.clock.now
        if arrived:
            tokens = sum(ack.num_tokens for ack in arrived)
            self.bus.took_at_least(tokens, self._surely_under_way(now))
            self._bus_is_this(now)
            self._cache.counters.h2d_tokens += tokens
            self._cache.counters.h2d_bytes += sum(ack.num_bytes for ack in arrived)
        if left:
            self._unfinished_at = now

    def _bus_is_this(self, now: float) -> None:
        self._bus_since, self._computed, self._waited = now, 0, False

    def _surely_under_way(self, now: float) -> float:
        """Seconds for which copies that have just arrived were on the bus, at least.

        Until they were last seen there. Or, where a batch has waited for them within
        one long pass, all the time but for what computing may have taken.
        """
        seen = self._unfinished_at - self._bus_since
        prefill = self.prefill.value
        if not self._waited or prefill is None:
            return seen
        computing = max(self._computed, _LONGEST_PASS) / prefill
        return max(seen, now - self._bus_since - computing)

    def backup_arrived(self, ack: Any) -> None:
        """A copy to host memory was acknowledged."""
        self._cache.counters.d2h_tokens += ack.num_tokens
        self._cache.counters.d2h_bytes += ack.num_bytes

    def pass_ended(self, batch: Any) -> None:
        """A scheduler pass has built `batch` (None: nothing to run)."""
        now = self._cache.clock.now
        self._heavy_ones.look(now)
        self._light_ones.look(now)
        if batch is None or not batch.forward_mode.is_extend():
            return
        tokens = batch.extend_num_tokens
        self._computed += tokens
        self._waited |= batch.hicache_consumer_index >= 0
        if not _tells_prefill(batch):
            return
        if tokens >= _LEAST_PREFILL:
            self._heavy_ones.begin(batch.reqs[0], tokens, now)
        else:
            self._light_ones.begin(batch.reqs[0], 1, now)

    def copy_avoided(self) -> None:
        """A copy was not made, because the bus is taken to be slow.

        Without copies nothing would ever show that it no longer is. So each sample
        lasts for some of these decisions; when too few are left, copies are made again,
        one in thirty or so.
        """
        self._avoided += 1
        if self._avoided % _AVOIDED_PER_SAMPLE == 0:
            self.bus.forget()

    def clear(self) -> None:
        """The tree was reset: no copy is under way."""
        self._heavy_ones.clear()
        self._light_ones.clear()


def _tells_prefill(batch: Any) -> bool:
    """Whether the time to its first answer is time spent computing it."""
    return (
        batch.hicache_consumer_index < 0
        and batch.chunked_req is None
        and not batch.reqs[0].output_ids
    )
