"""One execution of a workflow: where it stands now, and what that means in steps.

A `Run` is told what happens (`fire`, `start`, `end`, `superstep`, …), keeps the
frontier, and reports a new snapshot whenever the steps of some agent change. It does
no I/O: whoever wants the snapshots passes a listener.

Frameworks that run in supersteps (LangGraph, AutoGen's GraphFlow) announce each with
`superstep`. Without such announcements the run infers from the graph what a start
used up. Without a graph the steps are just the executing agents, at 0.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from .distance import Frontier, steps_to_execution
from .graph import SEPARATOR, START, AgentStepGraph
from .wire import FixedMark, StepUpdate

__all__ = ["Listener", "Run"]

Listener = Callable[[StepUpdate], None]

_logger = logging.getLogger(__name__)
_logger.addHandler(logging.NullHandler())


class Run:
    """The frontier of one run; every method may be called from any thread.

    `listener` gets every snapshot that differs in steps from the one before, the
    first one (what runs at the beginning) included, and the final one. It is called
    outside the lock, so two threads may deliver out of order: `StepUpdate.seq` says
    which is newer. What it raises is logged, never passed on.

    Names outside the graph are accepted everywhere; they count 0 while they execute.
    """

    def __init__(
        self,
        graph: AgentStepGraph | None,
        *,
        client: str,
        run_id: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.graph = graph
        self.client = client
        self.id = run_id or secrets.token_hex(16)
        self._listeners = () if listener is None else (listener,)
        self._lock = threading.Lock()
        self._frontier = _Frontier(graph)
        self._steps: dict[str, int] = {}
        self._seq = 0
        self._final = False
        self._deliver(self._changed())

    @property
    def finished(self) -> bool:
        return self._final

    def listen(self, listener: Listener) -> None:
        """`listener` hears of every later change, too; also of the end."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def fire(self, *nodes: str) -> None:
        """`nodes` have been triggered and will start; one entry per execution."""
        self._tell(lambda frontier: frontier.fire(nodes))

    def start(self, node: str) -> None:
        """One execution of `node` begins."""
        self._tell(lambda frontier: frontier.start(node))

    def end(self, node: str) -> None:
        """One execution of `node` is over; its successors are next."""
        self._tell(lambda frontier: frontier.end(node))

    def suspend(self, node: str) -> None:
        """One execution of `node` broke off and will be repeated: a retry, or an
        interrupt that waits for its answer."""
        self._tell(lambda frontier: frontier.suspend(node))

    def superstep(
        self,
        *nodes: str,
        subtree: str | None = None,
        arrivals: Mapping[int, Iterable[str]] | None = None,
    ) -> None:
        """A new superstep begins and runs `nodes`, one entry per execution.

        What ended before it is over: barriers have received it, and it is no source
        any longer. With `subtree` it is a superstep of that node's inner workflow: the
        node itself and what lies below it, ``subtree|…``; all else goes on. `arrivals`:
        what barriers have received by now, by number of the group, for frameworks that
        know it better than the graph does.
        """
        self._tell(lambda frontier: frontier.superstep(nodes, subtree, arrivals or {}))

    def resume(self, *nodes: str) -> None:
        """Go on in the superstep that was interrupted; `nodes` still have to run."""
        self._tell(lambda frontier: frontier.resume(nodes))

    def pause(self) -> None:
        """Nothing executes until `resume`; what did will be repeated."""
        self._tell(lambda frontier: frontier.pause())

    def finish(self) -> None:
        """The run is over, for good; later events change nothing."""
        with self._lock:
            if self._final:
                return
            self._final = True
            self._steps = {}
            self._seq += 1
            update = self._snapshot()
        self._deliver(update)

    def snapshot(
        self, *, agent: str | None = None, fixed: FixedMark | None = None
    ) -> StepUpdate:
        """Where the run stands; with `agent` and `fixed`, as one of its calls says."""
        with self._lock:
            return self._snapshot(agent, fixed)

    def _tell(self, event: Callable[[_Frontier], None]) -> None:
        with self._lock:
            if self._final:
                return
            event(self._frontier)
            update = self._changed()
        self._deliver(update)

    def _changed(self) -> StepUpdate | None:
        steps = self._frontier.steps()
        if steps == self._steps:
            return None
        self._steps = steps
        self._seq += 1
        return self._snapshot()

    def _snapshot(
        self, agent: str | None = None, fixed: FixedMark | None = None
    ) -> StepUpdate:
        return StepUpdate(
            client=self.client,
            run=self.id,
            seq=self._seq,
            agent=agent,
            # Replaced and never changed in place, so it can be handed out.
            steps=self._steps,
            fixed=fixed,
            final=self._final,
        )

    def _deliver(self, update: StepUpdate | None) -> None:
        if update is None:
            return
        for listener in self._listeners:
            try:
                listener(update)
            except Exception:
                _logger.warning("a listener of run %s failed", self.id, exc_info=True)


class _Frontier:
    """What a run has to remember between two events; not thread-safe."""

    def __init__(self, graph: AgentStepGraph | None) -> None:
        self._graph = graph
        self._executing: Counter[str] = Counter()
        self._fired: Counter[str] = Counter()
        self._holding: set[str] = set()
        self._arrivals: dict[int, set[str]] = {}
        self._started = False
        self._announced = False

    def steps(self) -> dict[str, int]:
        running = frozenset(self._executing) | frozenset(self._fired)
        if self._graph is None:
            return dict.fromkeys(running, 0)
        frontier = Frontier(
            executing=frozenset(self._executing),
            fired=frozenset(self._fired),
            holding=frozenset(self._holding),
            arrivals={k: frozenset(v) for k, v in self._arrivals.items()},
            started=self._started,
        )
        return steps_to_execution(self._graph, frontier)

    def fire(self, nodes: tuple[str, ...]) -> None:
        self._started = self._started or bool(nodes)
        self._fired.update(nodes)
        for node in nodes:
            self._use_up(node)

    def start(self, node: str) -> None:
        if node in self._fired:
            _take(self._fired, node)
        elif not self._announced:
            self._infer(node)
        self._started = True
        self._executing[node] += 1

    def end(self, node: str) -> None:
        if node not in self._executing:
            return
        _take(self._executing, node)
        if node not in self._executing and self._graph is not None:
            self._holding.add(node)

    def suspend(self, node: str) -> None:
        if node in self._executing:
            _take(self._executing, node)
            self._fired[node] += 1

    def superstep(
        self,
        nodes: tuple[str, ...],
        subtree: str | None,
        arrivals: Mapping[int, Iterable[str]],
    ) -> None:
        self._announced = True
        for counter in (self._executing, self._fired):
            for node in [name for name in counter if _within(name, subtree)]:
                del counter[node]
        for node in [name for name in self._holding if _within(name, subtree)]:
            self._arrive(node)
            self._holding.remove(node)
        for group, members in arrivals.items():
            self._arrivals[group] = set(members)
            if not self._arrivals[group]:
                del self._arrivals[group]
        self.fire(nodes)

    def resume(self, nodes: tuple[str, ...]) -> None:
        self._announced = True
        self._executing.clear()
        self._fired = Counter(nodes)

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
            self._arrive(cause)
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

    def _arrive(self, node: str) -> None:
        """Barriers remember `node`; so do deferred targets, which run much later."""
        if self._graph is None:
            return
        index = self._graph.index
        for group in self._graph.feeds(node):
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


def _within(node: str, subtree: str | None) -> bool:
    return (
        subtree is None or node == subtree or node.startswith(f"{subtree}{SEPARATOR}")
    )


def _take(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
