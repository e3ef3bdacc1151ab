"""One execution of a workflow: where it stands now, and what that means in steps.

A `Run` is told what happens (`fire`, `start`, `end`, `superstep`, …), keeps the
frontier, and reports a new snapshot whenever the steps of some agent change. It does
no I/O: whoever wants the snapshots passes a listener.

Frameworks that run in supersteps (LangGraph, AutoGen's GraphFlow) announce each with
`superstep`. Without such announcements the run infers from the graph what a start
used up. Without a graph the steps are just the executing agents, at 0.

Workflows come back to the same frontiers again and again, also in other runs, so what
was computed for one is kept with the graph (at most `MAX_KNOWN_STEPS`).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping

from .distance import Frontier, steps_to_execution
from .frontier import RunFrontier
from .graph import AgentStepGraph
from .likelihood import Transitions, likelihoods
from .observer import Observer
from .wire import FixedMark, Snapshot, StepUpdate

__all__ = ["Listener", "Run"]

Listener = Callable[[StepUpdate], None]

MAX_KNOWN_STEPS = 1 << 19
"""Steps that are kept with one graph: its agents times the frontiers."""
_NO_STEPS: Snapshot[int] = Snapshot()

_logger = logging.getLogger(__name__)
_logger.addHandler(logging.NullHandler())


class Run:
    """The frontier of one run; every method may be called from any thread.

    `listener` gets every snapshot that differs in steps from the one before, the
    first one (what runs at the beginning) included, and the final one. It is called
    outside the lock, so two threads may deliver out of order: `StepUpdate.seq` says
    which is newer. What it raises is logged, never passed on.

    Names outside the graph are accepted everywhere; they count 0 while they execute.

    With `transitions` the run adds to them what happens, and goes by what they hold:
    see `likelihood`.
    """

    def __init__(
        self,
        graph: AgentStepGraph | None,
        *,
        client: str,
        run_id: str | None = None,
        listener: Listener | None = None,
        transitions: Transitions | None = None,
    ) -> None:
        if transitions is not None:
            graph = transitions.graph() if graph is None else transitions.refine(graph)
        self.graph = graph
        self.client = client
        self.id = run_id or secrets.token_hex(16)
        self._listeners = () if listener is None else (listener,)
        self._lock = threading.Lock()
        self._frontier = RunFrontier(graph, Observer(transitions, graph))
        self._weights = None
        if transitions is not None and graph is not None:
            self._weights = transitions.weights(graph)
        self._steps = _NO_STEPS
        self._likelihood: Snapshot[float] | None = None
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

    def start(self, node: str, *, caller: str | None = None) -> None:
        """One execution of `node` begins, inside of one of `caller` if given."""
        self._tell(lambda frontier: frontier.start(node, caller))

    def end(self, node: str, *, caller: str | None = None) -> None:
        """One execution of `node` is over; its successors are next."""
        self._tell(lambda frontier: frontier.end(node, caller))

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

    def resume(
        self,
        *nodes: str,
        subtree: str | None = None,
        arrivals: Mapping[int, Iterable[str]] | None = None,
    ) -> None:
        """Go on in the superstep that was interrupted; `nodes` still have to run.

        `subtree` and `arrivals` as for `superstep`.
        """
        self._tell(lambda frontier: frontier.resume(nodes, subtree, arrivals or {}))

    def pause(self) -> None:
        """Nothing executes until `resume`; what did will be repeated."""
        self._tell(lambda frontier: frontier.pause())

    def finish(self) -> None:
        """The run is over, for good; later events change nothing."""
        with self._lock:
            if self._final:
                return
            self._final = True
            self._frontier.finish()
            self._steps, self._likelihood = _NO_STEPS, None
            self._seq += 1
            update = self._snapshot()
        self._deliver(update)

    def snapshot(
        self, *, agent: str | None = None, fixed: FixedMark | None = None
    ) -> StepUpdate:
        """Where the run stands; with `agent` and `fixed`, as one of its calls says."""
        with self._lock:
            return self._snapshot(agent, fixed)

    def _tell(self, event: Callable[[RunFrontier], None]) -> None:
        with self._lock:
            if self._final:
                return
            event(self._frontier)
            update = self._changed()
        self._deliver(update)

    def _changed(self) -> StepUpdate | None:
        frontier = self._frontier.frozen()
        steps, likelihood = self._known(frontier)
        if steps is self._steps or steps == self._steps:
            return None
        self._steps, self._likelihood = steps, likelihood
        self._seq += 1
        return self._snapshot()

    def _known(
        self, frontier: Frontier
    ) -> tuple[Snapshot[int], Snapshot[float] | None]:
        graph = self.graph
        if graph is None:
            running = frontier.executing | frontier.fired | frontier.hosting
            return Snapshot(dict.fromkeys(running, 0)), None
        key = frontier.key
        found = graph.memo.get(key)
        if found is not None and found[2] is self._weights:
            return found[0], found[1]
        steps = found[0] if found else Snapshot(steps_to_execution(graph, frontier))
        likelihood = None
        if self._weights is not None:
            known = likelihoods(graph, frontier, self._weights)
            reported = {name: known[name] for name in steps if name in known}
            likelihood = Snapshot(reported) if reported else None
        while len(graph.memo) * len(graph.nodes) >= MAX_KNOWN_STEPS:
            graph.memo.pop(next(iter(graph.memo), None), None)
        graph.memo[key] = (steps, likelihood, self._weights)
        return steps, likelihood

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
            likelihood=self._likelihood,
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
