"""What one HTTP process lets through: the caps and the rates, answered at once.

The schedulers keep the step table that counts, and nothing waits for them: a step
update is passed on and answered before they have seen it. So the HTTP process keeps a
table of the same bounds of all that it passed on, in band and out of band, and what
would exceed one is refused here, with the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvflow_sdk.wire import StepUpdate

from .steps import Outcome, StepLimits, StepTable

__all__ = ["Admission", "Intake", "IntakeLimits", "Refusal"]


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bounds on what one client may send out of band."""

    bytes_per_s: int = 1 << 20
    """Sustained rate of request bodies."""
    burst_bytes: int = 4 << 20
    """What a client that was quiet may send at once."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an update was not taken, for an answer with status 429."""

    field: str
    """The field of the update that the bound is on."""
    message: str
    """Names the bound and its number."""
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of one message."""

    accepted: list[StepUpdate] = field(default_factory=list)
    """To be passed on. Sending them again is harmless: `seq` tells."""
    refusal: Refusal | None = None
    """Of the first update that was not taken."""


class Intake:
    """Bounds on clients, runs, agents and bytes. Not thread-safe; O(agents)."""

    def __init__(self, steps: StepLimits, limits: IntakeLimits | None = None) -> None:
        self.limits = limits or IntakeLimits()
        self.table = StepTable(steps)
        self._rates: dict[str, tuple[float, float]] = {}
        """client -> (bytes it may still send, as of when), for those of the table."""
        self._next_expiry = -math.inf

    def note(self, updates: Sequence[StepUpdate], now: float) -> None:
        """These came in band: the call is served whatever the bounds say."""
        self._expire(now)
        for update in updates:
            self.table.apply(update, now)

    def admit(self, updates: Sequence[StepUpdate], size: int, now: float) -> Admission:
        """Updates of one message of `size` bytes, out of band.

        What is over a cap is refused and the rest accepted: the end of a run must not
        wait for the one that has no room until it ends. A client over its rate has
        nothing accepted.
        """
        self._expire(now)
        clients = list(dict.fromkeys(update.client for update in updates))
        for client in clients:
            left = self._left(client, now)
            if left <= 0:
                return Admission(refusal=self._too_fast(left))
        accepted = []
        refusal = None
        for update in updates:
            if self.table.apply(update, now) is not Outcome.OVER_CAP:
                accepted.append(update)
            elif refusal is None:
                refusal = self._over_cap(self.table.exceeded(update) or "clients")
        for client in clients:
            if self.table.knows(client):
                left = self._left(client, now) - size / len(clients)
                self._rates[client] = (left, now)
        return Admission(accepted, refusal)

    def _left(self, client: str, now: float) -> float:
        left, then = self._rates.get(client, (float(self.limits.burst_bytes), now))
        earned = (now - then) * self.limits.bytes_per_s
        return min(float(self.limits.burst_bytes), left + earned)

    def _expire(self, now: float) -> None:
        if now < self._next_expiry:
            return
        self._next_expiry = now + self.table.limits.lease_s / 10
        for client in self.table.expire(now):
            self._rates.pop(client, None)

    def _too_fast(self, left: float) -> Refusal:
        limits = self.limits
        return Refusal(
            field="body",
            message=f"body: a client may send {limits.bytes_per_s} bytes of step "
            f"updates a second, and {limits.burst_bytes} at once after a pause",
            retry_after_s=max(1, math.ceil(-left / limits.bytes_per_s)),
        )

    def _over_cap(self, bound: str) -> Refusal:
        limit = getattr(self.table.limits, bound)
        name, meaning = _CAPS[bound]
        return Refusal(
            field=name,
            message=f"{name}: {meaning.format(limit)}; a run counts until it ends with "
            f"`final`, or is silent for {self.table.limits.lease_s:g} s",
            retry_after_s=max(1, math.ceil(self.table.limits.lease_s / 10)),
        )


_CAPS = {
    "clients": ("client", "this server keeps {} clients at a time"),
    "runs_per_client": ("run", "a client may have {} live runs"),
    "agents_per_client": ("steps", "the live runs of a client may name {} agents"),
    "entries_per_client": (
        "steps",
        "the snapshots of a client's live runs may have {} entries together",
    ),
}
