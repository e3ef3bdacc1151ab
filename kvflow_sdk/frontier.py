"""What a run has to remember between two events, to say where it stands.

`Run` holds the lock and does the telling; this is the bookkeeping.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from .distance import Frontier
from .graph import SEPARATOR, START, AgentStepGraph

__all__ = ["Arrivals", "RunFrontier", "within"]

Arrivals: TypeAlias = frozenset[tuple[int, frozenset[str]]]
"""By number of a group: all the members that it has received by now."""


class RunFrontier:
    """What a run has to remember between two events; not thread-safe."""

    def __init__(self, graph: AgentStepGraph | None) -> None:
        self._graph = graph
        self._hosting: Counter[str] = Counter()
        self._executing: Counter[str] = Counter()
        self._fired: Counter[str] = Counter()
        self._holding: set[str] = set()
        self._arrivals: dict[int, set[str]] = {}
        self._started = False
        self._announced = False

    def copy(self) -> RunFrontier:
        """Another one that stands there, and goes on by itself."""
        made = RunFrontier(self._graph)
        made._hosting = self._hosting.copy()
        made._executing = self._executing.copy()
        made._fired = self._fired.copy()
        made._holding = self._holding.copy()
        made._arrivals = {group: set(got) for group, got in self._arrivals.items()}
        made._started = self._started
        made._announced = self._announced
        return made

    @property
    def key(self) -> tuple[object, ...]:
        """Hashable; equal for those from which equal events lead to equal ones."""
        return (
            frozenset(self._hosting.items()),
            frozenset(self._executing.items()),
            frozenset(self._fired.items()),
            frozenset(self._holding),
            frozenset((group, frozenset(got)) for group, got in self._arrivals.items()),
            self._started,
            self._announced,
        )

    def frozen(self) -> Frontier:
        return Frontier(
            executing=frozenset(self._executing),
            fired=frozenset(self._fired),
            holding=frozenset(self._holding),
            arrivals={k: frozenset(v) for k, v in self._arrivals.items()},
            started=self._started,
            hosting=frozenset(self._hosting),
        )

    def fire(self, nodes: tuple[str, ...]) -> None:
        self._started = self._started or bool(nodes)
        self._fired.update(nodes)
        for node in nodes:
            self._use_up(node)

    def start(self, node: str) -> None:
        if node in self._hosting:
            _take(self._hosting, node)
        if node in self._fired:
            _take(self._fired, node)
        elif not self._announced:
            self._infer(node)
        self._started = True
        self._executing[node] += 1

    def end(self, node: str) -> None:
        if node in self._hosting:
            # What followed it has followed the end of its inner workflow.
            _take(self._hosting, node)
            return
        if node not in self._executing:
            return
        _take(self._executing, node)
        if (
            node not in self._executing
            and self._graph is not None
            and node in self._graph
            and not self._opened(node)
        ):
            self._holding.add(node)

    def suspend(self, node: str) -> None:
        # One whose inner workflow has taken over waits inside of that.
        if node in self._executing:
            _take(self._executing, node)
            self._fired[node] += 1

    def superstep(
        self,
        nodes: tuple[str, ...],
        subtree: str | None,
        arrivals: Arrivals,
    ) -> None:
        self._announced = True
        self._take_over(subtree, nodes)
        for node in [name for name in self._holding if within(name, subtree)]:
            self._arrive(node, subtree)
            self._holding.remove(node)
        self._set_arrivals(arrivals)
        self.fire(nodes)

    def resume(
        self,
        nodes: tuple[str, ...],
        subtree: str | None,
        arrivals: Arrivals,
    ) -> None:
        self._announced = True
        self._started = True
        self._take_over(subtree, nodes)
        self._set_arrivals(arrivals)
        self._fired.update(nodes)

    def _take_over(self, subtree: str | None, nodes: tuple[str, ...]) -> None:
        """What runs below `subtree` is replaced by what will be said of it now."""
        if subtree is not None and subtree not in nodes and self._opened(subtree):
            if count := self._executing.pop(subtree, 0):
                self._hosting[subtree] += count
        elif subtree is None:
            self._hosting.clear()
        for counter in (self._executing, self._fired):
            for node in [name for name in counter if within(name, subtree)]:
                del counter[node]

    def _set_arrivals(self, arrivals: Arrivals) -> None:
        for group, members in arrivals:
            self._arrivals[group] = set(members)
            if not self._arrivals[group]:
                del self._arrivals[group]

    def _opened(self, node: str) -> bool:
        return self._graph is not None and node in self._graph.index.entrances

    def pause(self) -> None:
        self._fired.update(self._executing)
        self._executing.clear()

    def _infer(self, node: str) -> None:
        """`node` starts unannounced: what triggered it has done its part by that."""
        graph = self._graph
        if graph is None:
            return
        into = {name for g in graph.triggers(node) for name in graph.groups[g].sources}
        causes = self._holding & into
        for cause in causes:
            self._arrive(cause, None)
        if not self._started and START in into:
            causes.add(START)
        self._fired.update(self._certain(causes) - {node})
        if not causes and not self._executing:
            # A jump that the graph does not declare: what ended leads nowhere else.
            self._holding.clear()
        self._holding -= causes
        for target in (node, *self._fired):
            self._use_up(target)

    def _certain(self, causes: set[str]) -> set[str]:
        """The other nodes that will run, too, now that `causes` are over."""
        graph = self._graph
        if graph is None:
            return set()
        return {
            graph.groups[g].target
            for cause in causes
            for g in graph.feeds(cause)
            if not graph.groups[g].conditional
            and not graph.index.deferred[graph.index.targets[g]]
            and (graph.index.sizes[g] == 1 or self._complete(g))
        }

    def _arrive(self, node: str, subtree: str | None) -> None:
        """Barriers remember `node`; so do deferred targets, which run much later.

        Within an inner workflow only its own: it has not ended by that.
        """
        if self._graph is None:
            return
        index = self._graph.index
        for group in self._graph.feeds(node):
            if not within(self._graph.groups[group].target, subtree):
                continue
            if index.sizes[group] > 1 or index.deferred[index.targets[group]]:
                self._arrivals.setdefault(group, set()).add(node)

    def _use_up(self, node: str) -> None:
        """`node` was triggered: the groups that were complete begin anew."""
        if self._graph is None:
            return
        for group in self._graph.triggers(node):
            if self._complete(group):
                del self._arrivals[group]

    def _complete(self, group: int) -> bool:
        if self._graph is None or group not in self._arrivals:
            return False
        return len(self._arrivals[group]) == self._graph.index.sizes[group]


def within(node: str, subtree: str | None) -> bool:
    """Whether `node` is `subtree` or lies below it; anything is within None."""
    return (
        subtree is None or node == subtree or node.startswith(f"{subtree}{SEPARATOR}")
    )


def _take(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
