"""Learned transitions: who followed whom, how often, and what follows from that.

Markov counts between agents, one table per client. They do three things, each only
after `MIN_EVIDENCE` observations of the agent that was left:

* a program that declares no graph gets one, from what was seen;
* what a graph does not declare (a router without targets, a jump) is replaced by what
  was seen;
* every agent gets a likelihood: the largest product of frequencies along a path to it.
  It never changes `steps`.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .distance import Frontier
from .graph import START, AgentStepGraph, GraphBuilder, Group, StepIndex

__all__ = ["MIN_EVIDENCE", "Transitions", "likelihoods"]

MIN_EVIDENCE = 3
"""Observations of a source before anything follows from them."""
MAX_SOURCES = 4096
MAX_TARGETS = 64
"""Of one source. What comes after these is not learned."""
FORGET_AT = 512
"""Observations of a source at which its counts are halved: programs change."""
MAX_FILE_BYTES = 16 * 1024 * 1024
_FORMAT = 1

_logger = logging.getLogger("kvflow")


class Transitions:
    """Counts of one client; every method may be called from any thread.

    With `path` they begin with what that file holds, if it can be read, and `save`
    writes them there. The last of several processes that share a file wins.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.epoch = 0
        """Grows when what follows from the counts has changed noticeably."""
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}
        self._moved: dict[str, dict[str, int]] = {}
        self._next_epoch: dict[str, int] = {}
        self._graphs: dict[int, tuple[Any, int, AgentStepGraph]] = {}
        self._weights: dict[int, tuple[Any, int, tuple[float, ...] | None]] = {}
        self._learned: tuple[int, AgentStepGraph | None] = (-1, None)
        self._saved = 0
        self._changes = 0
        if self.path is not None:
            self._load(self.path)

    def leave(self, sources: Iterable[str]) -> None:
        """Each of `sources` has ended, and something else may follow."""
        with self._lock:
            for source in sources:
                count = self._left.get(source, 0)
                if not count and len(self._left) >= MAX_SOURCES:
                    continue
                self._left[source] = count + 1
                self._changes += 1
                if count + 1 >= FORGET_AT:
                    self._halve(source)
                if count + 1 >= self._next_epoch.get(source, MIN_EVIDENCE):
                    # Rarer and rarer: what is computed from this is worth keeping.
                    self._next_epoch[source] = count + 2 + count // 4
                    self.epoch += 1

    def move(self, source: str, target: str) -> None:
        """`target` follows `source`, which was left."""
        with self._lock:
            if source not in self._left:
                return
            targets = self._moved.setdefault(source, {})
            if target in targets or len(targets) < MAX_TARGETS:
                targets[target] = targets.get(target, 0) + 1

    def observe(self, source: str, targets: Collection[str]) -> None:
        """`source` ended and `targets` followed, all of them; none: it was the end."""
        self.leave((source,))
        for target in set(targets):
            self.move(source, target)

    def frequency(self, source: str, target: str) -> float | None:
        """How often `target` follows `source`, 0 to 1; None without the evidence."""
        left = self._left.get(source, 0)
        if left < MIN_EVIDENCE:
            return None
        return min(1.0, self._moved.get(source, {}).get(target, 0) / left)

    def followers(self, source: str) -> tuple[str, ...]:
        """Who has been seen after `source`; nobody without the evidence."""
        if self._left.get(source, 0) < MIN_EVIDENCE:
            return ()
        return tuple(self._moved.get(source, ()))

    def graph(self) -> AgentStepGraph | None:
        """What was seen, as a graph in which everything is conditional."""
        epoch, known = self._learned
        if epoch == self.epoch:
            return known
        epoch = self.epoch
        with self._lock:
            edges = [
                (source, target)
                for source in self._left
                for target in self.followers(source)
            ]
        made = _graph_of(edges) if edges else None
        if made is not None and known is not None and made == known:
            made = known
        self._learned = (epoch, made)
        return made

    def refine(self, graph: AgentStepGraph) -> AgentStepGraph:
        """`graph` with what it only assumed replaced by what was seen."""
        cached = self._graphs.get(id(graph))
        if cached is not None and cached[0] is graph and cached[1] == self.epoch:
            return cached[2]
        epoch = self.epoch
        groups = self._refined(graph)
        made = graph
        if set(groups) != set(graph.groups):
            made = AgentStepGraph(graph.nodes, groups)
        if cached is not None and cached[0] is graph and cached[2] == made:
            made = cached[2]
        if len(self._graphs) >= MAX_TARGETS:
            self._graphs.clear()
        self._graphs[id(graph)] = (graph, epoch, made)
        return made

    def weights(self, graph: AgentStepGraph) -> tuple[float, ...] | None:
        """By group of `graph`: how likely it triggers, once its sources have ended.

        1 for what is certain, -1 for what is not known; None when no choice is known.
        """
        cached = self._weights.get(id(graph))
        if cached is not None and cached[0] is graph and cached[1] == self.epoch:
            return cached[2]
        epoch = self.epoch
        made: tuple[float, ...] | None = None
        if graph.index.conditional and self._left:
            made = tuple(map(self._weight, graph.groups))
            if all(
                w < 0 for w, g in zip(made, graph.groups, strict=True) if g.conditional
            ):
                made = None
        if cached is not None and cached[0] is graph and cached[2] == made:
            made = cached[2]
        if len(self._weights) >= MAX_TARGETS:
            self._weights.clear()
        self._weights[id(graph)] = (graph, epoch, made)
        return made

    def save(self) -> None:
        """Write the file, if there is one and something is new. Never raises."""
        if self.path is None or self._changes == self._saved:
            return
        with self._lock:
            self._saved = self._changes
            text = json.dumps(
                {"version": _FORMAT, "left": self._left, "moved": self._moved}
            )
        try:
            beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self.path)
        except OSError as error:
            _logger.warning("kvflow: %s cannot be written: %s", self.path, error)

    def after_fork(self) -> None:
        """The lock may have been held in the parent."""
        self._lock = threading.Lock()

    def _weight(self, group: Group) -> float:
        if not group.conditional:
            return 1.0
        known = [self.frequency(source, group.target) for source in group.sources]
        return min(-1.0 if value is None else value for value in known)

    def _refined(self, graph: AgentStepGraph) -> tuple[Group, ...]:
        kept: list[Group] = []
        declared: set[tuple[str, str]] = set()
        for group in graph.groups:
            (source,) = group.sources if len(group.sources) == 1 else ("",)
            if group.unknown and self._left.get(source, 0) >= MIN_EVIDENCE:
                continue
            kept.append(group)
            declared.update((each, group.target) for each in group.sources)
        for source in (*graph.index.names, START):
            kept += [
                Group(target, frozenset([source]), conditional=True)
                for target in self.followers(source)
                if target in graph and (source, target) not in declared
            ]
        return tuple(kept)

    def _halve(self, source: str) -> None:
        self._left[source] //= 2
        self._next_epoch.pop(source, None)
        halved = {t: n // 2 for t, n in self._moved.get(source, {}).items()}
        self._moved[source] = {t: n for t, n in halved.items() if n}

    def _load(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != _FORMAT:
                raise ValueError(f"version {data['version']!r}, not {_FORMAT}")
            self._left = {str(s): int(n) for s, n in data["left"].items()}
            self._moved = {
                str(s): {str(t): int(n) for t, n in targets.items()}
                for s, targets in data["moved"].items()
            }
            self.epoch += 1
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _logger.warning("kvflow: %s is not used: %s", path, error)
            self._left, self._moved = {}, {}


def likelihoods(
    graph: AgentStepGraph, frontier: Frontier, weights: tuple[float, ...]
) -> dict[str, float]:
    """How likely each agent is to run, where that is known and less than certain.

    The largest product of `weights` along a path from the frontier; a barrier is as
    likely as the least likely of its members. An unknown weight says nothing, so what
    lies only behind one is left out.
    """
    found = _Search(graph.index, frontier, weights).run(frontier)
    names = graph.index.names
    return {
        name: round(value, 3)
        for name, value in zip(names, found, strict=False)
        if 0.0 < value < 0.9995
    }


class _Search:
    """Best first, which is right because no weight is above 1."""

    def __init__(
        self, index: StepIndex, frontier: Frontier, weights: tuple[float, ...]
    ) -> None:
        ids = index.ids
        self._index = index
        self._weights = weights
        self._found = [0.0] * len(ids)
        self._missing = list(index.sizes)
        self._certain: list[int] = []
        self._heap: list[tuple[float, int]] = []
        self._arrived = {
            group: {ids[name] for name in members if name in ids}
            for group, members in frontier.arrivals.items()
        }
        for group, members in self._arrived.items():
            self._missing[group] -= len(members)

    def run(self, frontier: Frontier) -> list[float]:
        ids = self._index.ids
        running = frontier.executing | frontier.fired | frontier.holding
        self._certain += [ids[name] for name in running if name in ids]
        if not frontier.started:
            self._certain.append(ids[START])
        for group in self._arrived:
            if not self._missing[group]:
                self._trigger(group, 1.0)
        while True:
            # What is certain needs no queue, and that is most of most graphs.
            while self._certain:
                self._leave(self._certain.pop(), 1.0)
            if not self._heap:
                return self._found
            negative, node = heapq.heappop(self._heap)
            self._leave(node, -negative)

    def _leave(self, node: int, likelihood: float) -> None:
        if self._found[node]:
            return
        self._found[node] = likelihood
        missing, arrived = self._missing, self._arrived
        for group in self._index.leaves[node]:
            if arrived and node in arrived.get(group, ()):
                continue
            missing[group] -= 1
            if not missing[group]:
                self._trigger(group, likelihood)

    def _trigger(self, group: int, likelihood: float) -> None:
        target = self._index.targets[group]
        weight = self._weights[group]
        if weight <= 0.0 or self._found[target]:
            return
        if weight * likelihood >= 1.0:
            self._certain.append(target)
        else:
            heapq.heappush(self._heap, (-weight * likelihood, target))


def _graph_of(edges: Iterable[tuple[str, str]]) -> AgentStepGraph | None:
    builder = GraphBuilder()
    pairs = sorted(edges)
    names = {name for pair in pairs for name in pair} - {START}
    for name in sorted(names):
        builder.add_node(name)
    for source, target in pairs:
        if target != START:
            builder.add_edge(source, target, conditional=True)
    with suppress(Exception):
        return builder.build()
    return None
