"""What the step stream keeps for one server: what waits, and until when."""

from __future__ import annotations

import itertools
import json
import random
from collections import deque

from .prewarm import PrewarmRequest
from .wire import MAX_AGENTS, StepUpdate

__all__ = ["Target", "json_of", "taken"]

MAX_BATCH = 64
"""Runs in one message: fewer than the server accepts, so that one is soon sent."""
FIRST_BACKOFF = 0.1
_OVER_BOUNDS = 429
MAX_PROMPTS = 1024
"""Prompts to be computed ahead that wait for one server."""


class Target:
    """One server: what waits for it, and until when it is left alone."""

    def __init__(self, root: str, api_key: str | None) -> None:
        self.root = root
        self.api_key = api_key
        self.pending: dict[str, StepUpdate] = {}
        self.prompts: deque[PrewarmRequest] = deque(maxlen=MAX_PROMPTS)
        self.failures = 0
        self.not_before = 0.0
        self.said: set[tuple[str, int]] = set()
        """Paths and statuses that have been logged since it last recovered."""

    def keep(self, update: StepUpdate, bound: int) -> int:
        """Let `update` wait; returns how many snapshots were given up for room.

        The end of a run is never given up for a snapshot of one that goes on.
        """
        waiting = self.pending.get(update.run)
        if waiting is not None:
            if update.seq > waiting.seq and not waiting.final:
                self.pending[update.run] = update
            return 0
        if len(self.pending) >= bound:
            unfinished = (run for run, u in self.pending.items() if not u.final)
            oldest = next(unfinished, None)
            if oldest is None and not update.final:
                return 1
            del self.pending[next(iter(self.pending)) if oldest is None else oldest]
            self.pending[update.run] = update
            return 1
        self.pending[update.run] = update
        return 0

    def take(self) -> list[StepUpdate]:
        """The next batch: at most `MAX_BATCH` runs with `MAX_AGENTS` entries."""
        batch: list[StepUpdate] = []
        entries = 0
        for run in list(itertools.islice(self.pending, MAX_BATCH)):
            update = self.pending[run]
            entries += len(update.steps or ()) + len(update.likelihood or ())
            if batch and entries > MAX_AGENTS:
                break
            batch.append(self.pending.pop(run))
        return batch

    def recover(self) -> None:
        if self.failures:
            self.failures = 0
            self.said.clear()

    def fail(self, now: float, bound: float, *, at_once: bool = False) -> None:
        """Leave the server alone: twice as long as last time, or for the bound."""
        pause = bound if at_once else FIRST_BACKOFF * 2 ** min(self.failures, 30)
        self.failures += 1
        # Spread, so that many clients do not come back at the same moment.
        self.not_before = now + min(pause, bound) * random.uniform(0.75, 1.0)


def taken(status: int, text: bytes, sent: int) -> int | None:
    """How many of `sent` snapshots a server took that had no room for the others.

    It took the rest, and newer ones come, so nobody has to wait. None for any other
    answer, and where the client as a whole is too fast (``body``).
    """
    answer = json_of(text) if status == _OVER_BOUNDS else None
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or error.get("type") != "kvflow_limit":
        return None
    taken = error.get("accepted")
    if error.get("field") == "body" or not isinstance(taken, int):
        return None
    return min(max(taken, 0), sent)


def json_of(text: bytes) -> object:
    """`text` decoded; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
