"""Which runs have something to say, and when.

A call carries where its run stands. To send the same snapshot beside it would cost the
server about as much as the call does to receive. Where the call goes is mostly known, and
then it is not sent there (`Run.told`). Otherwise it is held for a while, and mostly a
newer one takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import origin_of
from .errors import ConfigError

if TYPE_CHECKING:
    from .run import Run
    from .wire import StepUpdate

__all__ = ["CARRIED_S", "Noted"]

CARRIED_S = 0.25
"""Until a snapshot is sent that a call has carried nobody knows where: the call may still
wait inside of the program, or for another server."""


class Noted:
    """Runs in which something happened. `touch` may be called from any thread, without a
    lock; all else is for the thread that sends."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._touched: dict[str, Run] = {}
        self._held: dict[str, tuple[Run, float]] = {}
        """Whose newest snapshot a call has carried, and until when it is not sent."""

    def __bool__(self) -> bool:
        return bool(self._touched or self._held)

    @property
    def touched(self) -> bool:
        return bool(self._touched)

    def touch(self, run: Run) -> bool:
        """Something happened in `run`. Returns whether there are too many now."""
        self._touched[run.id] = run
        return len(self._touched) > self._bound

    def drop_oldest(self) -> bool:
        """Returns whether there was one."""
        oldest = next(iter(list(self._touched)), None)
        return oldest is not None and self._touched.pop(oldest, None) is not None

    def due(self, now: float, *, hurry: bool) -> bool:
        """Whether `take` has something to do."""
        held = self._held.values()
        return self.touched or any(hurry or until <= now for _, until in held)

    def next_due(self) -> float | None:
        """When `take` will have something to do, if nothing happens before."""
        return min((until for _, until in self._held.values()), default=None)

    def take(self, now: float, *, hurry: bool) -> list[tuple[StepUpdate, str | None]]:
        """The snapshots to be sent now, each to all servers but the one (its origin)
        that a call has told; with `hurry` of all runs."""
        noted = [self._touched.pop(run_id, None) for run_id in list(self._touched)]
        ready = []
        for run in (run for run in noted if run is not None):
            if not hurry and len(self._held) < self._bound and run.carried():
                self._held[run.id] = (run, now + CARRIED_S)
            else:
                self._held.pop(run.id, None)
                ready.append(run)
        for run, until in list(self._held.values()):
            if hurry or until <= now:
                del self._held[run.id]
                ready.append(run)
        unsent = (run.unsent() for run in ready)
        return [(one[0], _origin(one[1])) for one in unsent if one is not None]


def _origin(base_url: str | None) -> str | None:
    try:
        return None if base_url is None else origin_of(base_url)
    except ConfigError:
        return None
