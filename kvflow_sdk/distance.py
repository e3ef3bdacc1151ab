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
    hosting: frozenset[str] = _NOTHING
    """Executing, but an inner workflow has taken over: reported, and no sources."""


def steps_to_execution(graph: AgentStepGraph, frontier: Frontier) -> dict[str, int]:
    """The steps of every reachable agent; an unreachable one is left out.

    A name of the frontier that is not in the graph counts 0 and triggers nothing.
    """
    running = frontier.executing | frontier.fired
    index = graph.index
    found = _Pass(index, frontier).run(running)
    steps = {
        name: depth
        for name, depth in zip(index.names, found, strict=False)
        if depth >= 0
    }
    for name, reported in index.entrances.items():
        if name in steps and not reported:
            del steps[name]
        elif name in steps:
            steps[name] += 1
    for name in running | frontier.hosting:
        if index.entrances.get(name, True):
            steps[name] = 0
    return steps


class _Pass:
    """One computation; ids and group numbers are those of the graph's index."""

    __slots__ = (
        "arrived",
        "depths",
        "index",
        "missing",
        "sources",
        "spent",
        "waiting",
    )

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
        # What has been taken off the groups that it is a member of.
        self.spent = bytearray(len(ids))
        for group, members in self.arrived.items():
            self.missing[group] -= len(members)
        self.sources = [ids[name] for name in frontier.holding if name in ids]
        if not frontier.started:
            self.sources.append(ids[START])

    def run(self, running: Iterable[str]) -> list[int]:
        """Depths by id, -1 for unreachable."""
        ids = self.index.ids
        level: list[int] = []
        for node in [ids[name] for name in running if name in ids]:
            self._begin(node, level)
        following: list[int] = []
        for group in self.arrived:
            if self.missing[group] == 0:
                self._reach(self.index.targets[group], 1, following)
        self._leave(self.sources, 1, following)
        depth = 0
        while level or following or self.waiting:
            if not level and not following:
                level = self._release()
                depth = max(0, *self.depths)
            depth += 1
            self._leave(level, depth, following)
            level, following = following, []
        return self.depths

    def _begin(self, node: int, level: list[int]) -> None:
        """`node` runs now; an entrance is where its inner workflow begins, now."""
        if self.index.names[node] not in self.index.entrances:
            self.depths[node] = 0
            level.append(node)
        elif self.depths[node] < 0:
            self.depths[node] = 0
            self._leave((node,), 0, level)

    def _release(self) -> list[int]:
        """The deferred nodes run now, after everything that was found before."""
        depth = max(0, *self.depths) + 1
        waiting, self.waiting = self.waiting, []
        level: list[int] = []
        for node in waiting:
            if self.index.names[node] in self.index.entrances:
                self.depths[node] = depth - 1
                self._leave((node,), depth, level)
            else:
                self.depths[node] = depth
                level.append(node)
        return level

    def _leave(self, nodes: Iterable[int], depth: int, following: list[int]) -> None:
        """Take `nodes` off their groups; those now complete trigger at `depth`."""
        index, missing, depths = self.index, self.missing, self.depths
        leaves, targets, special = index.leaves, index.targets, index.special
        arrived, spent = self.arrived, self.spent
        for node in nodes:
            if spent[node]:
                continue
            spent[node] = 1
            for group in leaves[node]:
                if arrived and node in arrived.get(group, ()):
                    continue
                missing[group] -= 1
                if not missing[group]:
                    target = targets[group]
                    if special[target]:
                        self._reach(target, depth, following)
                    elif depths[target] < 0:
                        depths[target] = depth
                        following.append(target)

    def _reach(self, target: int, depth: int, following: list[int]) -> None:
        if self.depths[target] >= 0:
            return
        if self.index.deferred[target]:
            if target not in self.waiting:
                self.waiting.append(target)
        elif self.index.special[target]:
            self.depths[target] = depth - 1
            self._leave((target,), depth, following)
        else:
            self.depths[target] = depth
            following.append(target)
