"""The time that decisions are made by: the same on every rank.

Ranks that share a model must evict, prefetch and skip alike, or their collectives
hang; and each has a clock of its own. So only the first rank reads one. What it read
rides on the broadcast that brings every rank the same requests (`handlers`), and all
ranks, the first included, go by that. It stands still in between.
"""

from __future__ import annotations

__all__ = ["RankClock"]

BUSY_TICK_S = 0.001
IDLE_TICK_S = 0.01
"""An idle scheduler polls in a loop; it need not hear the time in every turn."""


class RankClock:
    """Monotonic seconds as of the last tick; 0 before the first one."""

    __slots__ = ("_now", "_sent")

    def __init__(self) -> None:
        self._now = 0.0
        self._sent = float("-inf")

    @property
    def now(self) -> float:
        return self._now

    def advance(self, now: float) -> None:
        """Take in a tick; the clock never goes back."""
        self._now = max(self._now, now)

    def due(self, now: float, *, busy: bool) -> bool:
        """Whether the rank that reads the time, which is `now`, shall send a tick."""
        if now - self._sent < (BUSY_TICK_S if busy else IDLE_TICK_S):
            return False
        self._sent = now
        return True
