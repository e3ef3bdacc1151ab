"""The prefetch planner: which piece to copy to the device next.

While an agent executes, the fixed prompts of those that run next come back from host
memory, nearest and likeliest first, in pieces small enough that an on-demand load
never waits long behind one (PAPER.md, "Prefetch"). The planner only chooses; whether
there is room is asked for each piece through `Room`, whose answer holds the ceiling: a
prefetch may displace only what is evicted before what it brings in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .steps import StepTable

__all__ = ["Candidate", "Credit", "PrefetchLimits", "rank_candidates"]


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """Bounds of the planner."""

    horizon: int = 1
    """Agents at most this many steps away are fetched."""
    max_inflight: int = 2
    """Pieces that may be in flight at once."""
    piece_tokens: int = 512
    """Fixed prompts are cut at multiples of this; a piece is one node."""
    credit_window: int = 32
    credit_floor: float = 0.5
    """A client whose share of used prefetches is lower is throttled."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """An agent worth fetching for; the smallest comes first."""

    retained: bool
    """Wanted by a run that is still to come: only when no live run wants anything."""
    steps: int
    unlikelihood: float
    """1 - likelihood; an unknown likelihood counts as 1."""
    client: str
    agent: str


@dataclass(slots=True)
class Credit:
    """Whether a client's prefetches are used; counts pieces."""

    window: deque[bool] = field(default_factory=deque)

    def record(self, used: bool, limits: PrefetchLimits) -> None:
        self.window.append(used)
        while len(self.window) > limits.credit_window:
            self.window.popleft()

    def allows(self, limits: PrefetchLimits) -> bool:
        """A full window below the floor stops prefetching for the client."""
        if len(self.window) < limits.credit_window:
            return True
        return sum(self.window) >= limits.credit_floor * len(self.window)


def rank_candidates(
    table: StepTable,
    agents: Iterable[tuple[str, str]],
    limits: PrefetchLimits,
) -> list[Candidate]:
    """The agents within the horizon, nearest and likeliest first.

    `agents` are the (client, agent) that own a fixed prompt not wholly on the device.
    """
    chosen = []
    for client, agent in agents:
        steps = table.steps(client, agent)
        retained = steps is None
        if steps is None:
            steps = table.steps_of_next_run(client, agent)
        if steps is not None and steps <= limits.horizon:
            likelihood = table.likelihood(client, agent)
            unlikely = 0.0 if likelihood is None else 1.0 - likelihood
            chosen.append(Candidate(retained, steps, unlikely, client, agent))
    return sorted(chosen)
