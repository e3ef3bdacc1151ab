"""Where runs of one graph may stand, each computed once and kept with the graph.

Workflows come back to the same places again and again, also in other runs: the same
event leads from the same position to the same one. So a run that goes where one has
been before follows a reference, and the steps, also packed for the wire, are there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from .distance import Frontier, steps_to_execution
from .frontier import RunFrontier
from .graph import AgentStepGraph
from .likelihood import likelihoods
from .wire import Snapshot

__all__ = [
    "MAX_KNOWN_STEPS",
    "NO_STEPS",
    "Event",
    "Position",
    "Positions",
    "positions_of",
]

Event: TypeAlias = tuple[Any, ...]
"""The name of a method of `RunFrontier` and its arguments, all of them hashable."""
Weights: TypeAlias = tuple[float, ...] | None

MAX_KNOWN_STEPS = 1 << 19
"""Steps that are kept with one graph: its agents times the positions."""
MAX_MOVES = 256
"""Events that are remembered of one position."""
NO_STEPS: Snapshot[int] = Snapshot()
_UNDECLARED_AGENTS = 64
"""A graph that nobody declared counts as one of so many."""


class Position:
    """One place; what it holds is never changed, only added to."""

    __slots__ = ("_at", "_likelihood", "frontier", "moves", "steps")

    def __init__(
        self, at: RunFrontier, frontier: Frontier, steps: Snapshot[int]
    ) -> None:
        self._at = at
        self.frontier = frontier
        self.steps = steps
        self.moves: dict[Event, tuple[Position, bool]] = {}
        """Where an event leads, and whether the steps there are others."""
        self._likelihood: tuple[Weights, Snapshot[float] | None] = (None, None)

    def leave(self, event: Event) -> RunFrontier:
        """What `event` makes of it."""
        at = self._at.copy()
        name, *arguments = event
        getattr(at, name)(*arguments)
        return at

    def likelihood(
        self, graph: AgentStepGraph | None, weights: tuple[float, ...]
    ) -> Snapshot[float] | None:
        """Of the agents in `steps` where it is known and less than certain."""
        if graph is None:
            return None
        known = self._likelihood
        if known[0] is not weights:
            found = likelihoods(graph, self.frontier, weights)
            reported = {name: found[name] for name in self.steps if name in found}
            known = weights, Snapshot(reported) if reported else None
            self._likelihood = known
        return known[1]


class Positions:
    """Those of one graph that were met; safe in any thread: what two make at the same
    time is equal, and one of them is kept."""

    def __init__(self, graph: AgentStepGraph | None) -> None:
        self._graph = graph
        agents = _UNDECLARED_AGENTS if graph is None else len(graph.nodes)
        self._bound = max(1, MAX_KNOWN_STEPS // max(1, agents))
        self._known: dict[tuple[object, ...], Position] = {}
        self.first = self._find(RunFrontier(graph))

    def __len__(self) -> int:
        return len(self._known)

    def after(self, position: Position, event: Event) -> tuple[Position, bool]:
        """Where `event` leads from `position`, and whether the steps there are others."""
        moves = position.moves
        found = moves.get(event)
        if found is None:
            reached = self._find(position.leave(event), position)
            found = reached, reached.steps != position.steps
            if len(moves) >= MAX_MOVES:
                moves.clear()
            moves[event] = found
        return found

    def _find(self, at: RunFrontier, before: Position | None = None) -> Position:
        key = at.key
        found = self._known.get(key)
        if found is not None:
            return found
        if len(self._known) >= self._bound:
            # Runs go on from the ones they hold, which go when the last has left.
            self._known.clear()
        frontier = at.frozen()
        steps = self._steps_at(frontier)
        if before is not None and steps == before.steps:
            steps = before.steps  # what is packed once serves both
        return self._known.setdefault(key, Position(at, frontier, steps))

    def _steps_at(self, frontier: Frontier) -> Snapshot[int]:
        if self._graph is None:
            running = frontier.executing | frontier.fired | frontier.hosting
            return Snapshot(dict.fromkeys(running, 0))
        return Snapshot(steps_to_execution(self._graph, frontier))


_undeclared = Positions(None)
"""Of all runs without a graph: the agents that execute, and no more."""


def positions_of(graph: AgentStepGraph | None) -> Positions:
    """Those of `graph`, the same object each time."""
    if graph is None:
        return _undeclared
    found = graph.memo.get(Positions)
    if found is None:
        found = graph.memo.setdefault(Positions, Positions(graph))
    assert isinstance(found, Positions)
    return found
