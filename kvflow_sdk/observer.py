"""What one run teaches: who followed whom."""

from __future__ import annotations

from collections.abc import Collection

from .graph import START, AgentStepGraph
from .likelihood import Transitions

__all__ = ["Observer"]

MAX_NOTES = 64


class Observer:
    """Tells `Transitions` what one run does. Not thread-safe: the run's lock holds.

    Agents that start and end are only noted, and read when the run ends or `MAX_NOTES`
    have gathered: what they teach counts for runs that begin later, and the agent that
    starts is about to make a call.

    A framework that announces supersteps says exactly who followed whom. Otherwise it
    is read off the order: whatever starts follows those that have ended since the last
    start before that (all of them: a fan-in), or, if none has, what the last one
    followed (a fan-out). An agent that runs inside another follows that one first.
    """

    def __init__(
        self, transitions: Transitions | None, graph: AgentStepGraph | None
    ) -> None:
        self._transitions = transitions
        self._graph = graph
        self._announced = False
        self._waves: dict[str | None, _Wave] = {}
        self._notes: list[tuple[bool, str, str | None]] = []

    def start(self, node: str, caller: str | None) -> None:
        self._note(True, node, caller)

    def end(self, node: str, caller: str | None) -> None:
        self._note(False, node, caller)

    def _note(self, starts: bool, node: str, caller: str | None) -> None:
        if self._transitions is None or self._announced:
            return
        self._notes.append((starts, node, caller))
        if len(self._notes) >= MAX_NOTES:
            self._read(self._transitions)

    def _read(self, transitions: Transitions) -> None:
        notes, self._notes = self._notes, []
        for starts, node, caller in notes:
            wave = self._waves.get(caller)
            if not starts:
                if wave is not None:
                    wave.ended.add(node)
                self._waves.pop(node, None)
                continue
            if wave is None:
                first = START if caller is None else caller
                wave = self._waves[caller] = _Wave({first})
            for source in wave.begin(transitions):
                if node not in wave.begun:
                    transitions.move(source, node)
            wave.begun.add(node)

    def superstep(self, ended: Collection[str], nodes: Collection[str]) -> None:
        """`ended` are over and `nodes` run next, in the same workflow."""
        first = not self._announced and not ended
        self._announced = True
        if self._transitions is None:
            return
        if self._notes:
            self._read(self._transitions)
        targets = set(nodes)
        sources = {START} if first else set(ended)
        declared = {
            source: {t for t in targets if self._feeds(source, t)} for source in sources
        }
        surprising = targets.difference(*declared.values())
        for source in sources:
            if surprising or self._chooses(source):
                self._transitions.observe(source, declared[source] | surprising)

    def finish(self, ended: Collection[str], *, whole: bool) -> None:
        """The run is over; `ended` came last, unless it was broken off: not `whole`."""
        if self._transitions is None:
            return
        self._read(self._transitions)
        if not whole:
            return
        if self._announced:
            self._transitions.leave(s for s in ended if self._chooses(s))
            return
        for wave in self._waves.values():
            self._transitions.leave(wave.ended)

    def _feeds(self, source: str, target: str) -> bool:
        graph = self._graph
        return graph is not None and any(
            graph.groups[group].target == target for group in graph.feeds(source)
        )

    def _chooses(self, source: str) -> bool:
        graph = self._graph
        return graph is None or any(
            graph.groups[group].conditional for group in graph.feeds(source)
        )


class _Wave:
    """What starts between two ends, and what it follows."""

    __slots__ = ("begun", "ended", "sources", "told")

    def __init__(self, sources: set[str]) -> None:
        self.sources = sources
        self.ended: set[str] = set()
        self.begun: set[str] = set()
        self.told = False

    def begin(self, transitions: Transitions) -> set[str]:
        """Something starts: what it follows."""
        if self.ended:
            self.sources, self.ended = self.ended, set()
            self.begun, self.told = set(), False
        if not self.told:
            self.told = True
            transitions.leave(self.sources)
        return self.sources
