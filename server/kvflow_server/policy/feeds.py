"""What the StepTable is bounded by, what it answers an update, and what it tells others."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Changes", "Outcome", "StepLimits"]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of a `StepTable`."""

    clients: int = 1024
    runs_per_client: int = 1024
    agents_per_client: int = 8192
    """Distinct agent names that one client's live runs may mention together."""
    entries_per_client: int = 1 << 18
    """Entries of `steps` in the snapshots of one client's live runs together."""
    tombstones_per_client: int = 1024
    lease_s: float = 600.0
    """A client, run or tombstone unheard of for this long is forgotten."""


class Outcome(Enum):
    """What became of an update."""

    APPLIED = "applied"
    STALE = "stale"
    """An older or equal `seq`, or a run that has ended: the steps were ignored."""
    OVER_CAP = "over_cap"
    """A bound of `StepLimits` would be exceeded: nothing was changed."""


@dataclass(slots=True)
class Changes:
    """What may answer differently since the feed was last cleared.

    Names in the order they changed, each once, the same on every rank. It may name
    what came out as before, and never leaves out what did not.
    """

    clients: dict[str, None] = field(default_factory=dict)
    """Became known, or was forgotten."""
    runs: dict[tuple[str, str], None] = field(default_factory=dict)
    """(client, run) that began or ended."""
    agents: dict[tuple[str, str], None] = field(default_factory=dict)
    """(client, agent) whose steps or likelihood changed; or their steps of the next
    run, where no live run reaches them."""
    calls: dict[tuple[str, str, str], None] = field(default_factory=dict)
    """(client, run, agent) that began or ceased to execute."""

    def __bool__(self) -> bool:
        return bool(self.agents or self.runs or self.calls or self.clients)

    def clear(self) -> None:
        self.clients.clear()
        self.runs.clear()
        self.agents.clear()
        self.calls.clear()
