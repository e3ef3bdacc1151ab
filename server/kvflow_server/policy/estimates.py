"""What was measured of the machine and of the clients, and what follows from it.

A copy from host memory is quicker than computing its tokens again nearly everywhere
(PAPER.md: 7 to 28 times). Where it is not, a copy that nobody waits for still helps,
and one that a request would wait for does not. Without measurements nothing here speaks
against a copy.

Times are known to a scheduler pass only. So the bus is taken to be at least as fast as
it may have been, and computing at most: what is concluded from that holds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

__all__ = [
    "Pace",
    "Rate",
    "computing_is_quicker",
    "copy_is_hidden",
    "worth_prefetching",
]

_MARGIN = 1.25
"""Computing must be this much quicker than a copy to be preferred: stock SGLang always
copies, and must not be lost to."""


class Rate:
    """Tokens per second, or passes, over the last samples; robust against single bad ones.

    `quantile` says which of the samples speaks: above one half errs on the fast side.
    """

    def __init__(self, *, quantile: float, window: int = 16, least: int = 4) -> None:
        self._quantile = quantile
        self._least = least
        self._samples: deque[float] = deque(maxlen=window)

    def took_at_most(self, tokens: int, seconds: float) -> None:
        """So the rate was at least this; without extent it says nothing."""
        if tokens > 0 and seconds > 0:
            self._samples.append(tokens / seconds)

    def took_at_least(self, tokens: int, seconds: float) -> None:
        """So the rate was at most this; without an extent in time it has no bound."""
        if tokens > 0:
            self._samples.append(tokens / seconds if seconds > 0 else math.inf)

    def forget(self) -> None:
        """The oldest sample no longer counts."""
        if self._samples:
            self._samples.popleft()

    @property
    def value(self) -> float | None:
        """None until there are enough samples."""
        if len(self._samples) < self._least:
            return None
        ordered = sorted(self._samples)
        return ordered[round(self._quantile * (len(ordered) - 1))]


class Pace:
    """Seconds that a step of a client's runs takes."""

    def __init__(self, window: int = 8) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._since = 0.0

    def moved(self, now: float, seconds: float) -> None:
        """At `now` one of its runs went on, `seconds` after its step before."""
        self._samples.append(seconds)
        self._since = now

    def lead(self, steps: int, now: float) -> float | None:
        """Seconds until an agent that many steps away calls; None if unknown."""
        if not steps:
            return 0.0
        if not self._samples:
            return None
        whole = steps * statistics.median(self._samples)
        return max(0.0, whole - (now - self._since))


def computing_is_quicker(
    copied: int, computed: int, bus: float | None, prefill: float | None
) -> bool:
    """Whether a request gets its first token sooner without its copy.

    `copied`: tokens of its prefix that are only in host memory. `computed`: tokens that
    it computes in any case, which SGLang overlaps with the copy: so the copy alone,
    however much of it is hidden, must take longer than computing everything. Rates in
    tokens per second, None if unknown.
    """
    if bus is None or prefill is None:
        return False
    return copied / bus > _MARGIN * (copied + computed) / prefill


def copy_is_hidden(
    copied: int,
    computed: int,
    bus: float | None,
    prefill: float | None,
    passes: float | None = None,
) -> bool:
    """Whether a copy ends before the computing beside it does, which waits for it layer
    by layer.

    `copied`: tokens on the bus until the request has all it needs, those before it in
    the queue included; `computed`: tokens that its batch computes. Rates in tokens per
    second; `passes`: of few tokens, per second, for however few there are, the weights
    are read once. Unknown rates hide nothing.
    """
    if bus is None:
        return False
    computing = 0.0 if prefill is None else computed / prefill
    reading = 0.0 if passes is None else 1 / passes
    return copied / bus <= max(computing, reading)


def worth_prefetching(
    tokens: int,
    ahead: int,
    lead: float | None,
    bus: float | None,
    prefill: float | None,
) -> bool:
    """Whether to start a copy of `tokens` behind `ahead` others on the bus.

    A copy that comes late is a head start over one on demand, and so worth it, unless
    the agent (it calls in `lead` seconds) would sooner have computed those tokens.
    """
    if bus is None or lead is None or not computing_is_quicker(tokens, 0, bus, prefill):
        return True
    return (ahead + tokens) / bus <= lead
