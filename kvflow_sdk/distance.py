"""Steps-to-execution: how far each agent is from running, given a run's frontier.

::

    E(v) = 0                                          if v is executing or has fired
    E(v) = min over groups g of ( max over u in g of e(u) ) + 1
           where e(u) = 0 if u is a source for this group, else E(u)

With loops this is a shortest hyperpath with a superior function (Knuth 1977: "A
generalization of Dijkstra's algorithm"). Every node weighs 1, so the queue of that
algorithm is a plain sequence of levels and the whole pass costs O(V + E): a group
triggers its target one level after the last of its members came to rest, and the
first group to do so is the minimum.

A deferred node waits for everything else: it gets 1 + the largest E found without
it. Deferred nodes that are triggered in the same round run together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .graph import START, AgentStepGraph, StepIndex

__all__ = ["Frontier", "steps_to_execution"]

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Frontier:
    """Where a run stands: what the distances are counted from."""

    executing: frozenset[str] = _NOTHING
    fired: frozenset[str] = _NOTHING
    """Triggered, not started yet."""
    holding: frozenset[str] = _NOTHING
    """Ended in a superstep that still runs: sources, but not reported themselves."""
    arrivals: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By number of a group: the members it has received already. They count 0 inside
    that group only."""
    started: bool = True
    """False at the beginning, while `START` is still a source."""


def steps_to_execution(graph: AgentStepGraph, frontier: Frontier) -> dict[str, int]:
    """The steps of every reachable agent; an unreachable one is left out.

    A name of the frontier that is not in the graph counts 0 and triggers nothing.
    """
    running = frontier.executing | frontier.fired
    found = _Pass(graph.index, frontier).run(running)
    names = graph.index.names
    steps = {names[node]: depth for node, depth in enumerate(found) if depth >= 0}
    for name in running:
        steps.setdefault(name, 0)
    return steps


class _Pass:
    """One computation; ids and group numbers are those of the graph's index."""

    __slots__ = ("arrived", "depths", "index", "missing", "spent", "waiting")

    def __init__(self, index: StepIndex, frontier: Frontier) -> None:
        ids = index.ids
        self.index = index
        self.depths = [-1] * len(index.names)
        self.missing = list(index.sizes)
        self.arrived = {
            group: {ids[name] for name in members if name in ids}
            for group, members in frontier.arrivals.items()
        }
        self.waiting: list[int] = []
        # What has already been taken off the groups it is a member of.
        self.spent = bytearray(len(ids))
        for group, members in self.arrived.items():
            self.missing[group] -= len(members)
        for name in frontier.holding:
            if name in ids:
                self.spent[ids[name]] = 1
        if not frontier.started:
            self.spent[ids[START]] = 1

    def run(self, running: Iterable[str]) -> list[int]:
        """Depths by id, -1 for unreachable."""
        ids = self.index.ids
        sources = [node for node, is_source in enumerate(self.spent) if is_source]
        level = [ids[name] for name in running if name in ids]
        for node in level:
            self.depths[node] = 0
        following = [
            target
            for group in self.arrived
            if self.missing[group] == 0
            for target in self._reach(group, 1)
        ]
        for node in sources:
            self._leave(node, 1, following)
        depth = 0
        while level or following or self.waiting:
            if not level and not following:
                level, self.waiting = self.waiting, []
                depth = max(0, *self.depths) + 1
                for node in level:
                    self.depths[node] = depth
            for node in level:
                if not self.spent[node]:
                    self.spent[node] = 1
                    self._leave(node, depth + 1, following)
            level, following = following, []
            depth += 1
        return self.depths

    def _leave(self, node: int, depth: int, following: list[int]) -> None:
        """Take `node` off its groups; those now complete trigger at `depth`."""
        missing = self.missing
        for group in self.index.leaves[node]:
            if group in self.arrived and node in self.arrived[group]:
                continue
            missing[group] -= 1
            if missing[group] == 0:
                following.extend(self._reach(group, depth))

    def _reach(self, group: int, depth: int) -> tuple[int, ...]:
        target = self.index.targets[group]
        if self.depths[target] >= 0:
            return ()
        if self.index.deferred[target]:
            if target not in self.waiting:
                self.waiting.append(target)
            return ()
        self.depths[target] = depth
        return (target,)
