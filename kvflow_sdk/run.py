"""One execution of a workflow: where it stands now, and what that means in steps.

A `Run` is told what happens (`fire`, `start`, `end`, `superstep`, …), keeps the
frontier, and reports a new snapshot whenever the steps of some agent change. It does
no I/O: whoever wants the snapshots passes a listener.

Frameworks that run in supersteps (LangGraph, AutoGen's GraphFlow) announce each with
`superstep`. Without such announcements the run infers from the graph what a start
used up. Without a graph the steps are just the executing agents, at 0.

What was computed for a place where some run stood is kept with the graph (`position`).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from .frontier import Arrivals, within
from .graph import AgentStepGraph
from .likelihood import Transitions
from .observer import Observer
from .position import NO_STEPS, Event, positions_of
from .wire import FixedMark, Snapshot, StepUpdate

__all__ = ["Listener", "Outbox", "Run"]

Listener = Callable[[StepUpdate], None]


class Outbox(Protocol):
    """Who sends what runs have to say, in a thread of its own. No method waits."""

    def touch(self, run: Run) -> None:
        """Something happened in `run`: ask it for `Run.unsent` when there is time."""

    def put(self, update: StepUpdate) -> None:
        """Send this, the last word of a run."""


_NO_ARRIVALS: Arrivals = frozenset()

_logger = logging.getLogger(__name__)
_logger.addHandler(logging.NullHandler())


class Run:
    """The frontier of one run; every method may be called from any thread.

    `listener` gets every snapshot that differs in steps from the one before, the
    first one (what runs at the beginning) included, and the final one. It is called
    outside the lock, so two threads may deliver out of order: `StepUpdate.seq` says
    which is newer. What it raises is logged, never passed on.

    An `outbox` only hears that something happened, and asks. So what the end of an agent
    means is worked out by the outbox's thread, or by whatever happens next.

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
        outbox: Outbox | None = None,
        transitions: Transitions | None = None,
    ) -> None:
        if transitions is not None:
            graph = transitions.graph() if graph is None else transitions.refine(graph)
        self.graph = graph
        self.client = client
        self.id = run_id or secrets.token_hex(16)
        self._listeners = () if listener is None else (listener,)
        self._outbox = outbox
        self._lock = threading.Lock()
        self._observer = Observer(transitions, graph)
        self._positions = positions_of(graph)
        self._position = self._positions.first
        self._weights = None
        if transitions is not None and graph is not None:
            self._weights = transitions.weights(graph)
        self._steps: Snapshot[int] = NO_STEPS
        self._likelihood: Snapshot[float] | None = None
        self._seq = 0
        self._sent = 0
        self._carried = 0
        self._told: tuple[int, str] = 0, ""
        self._ends: list[tuple[str, str | None]] = []
        """Of agents, and of their callers, that are not taken into account yet."""
        self._final = False
        self.owner: Callable[[], Any] | None = None
        """Gives the client that started it, if that still exists."""
        if self._position.steps:
            self._arrive()
            self._deliver(self._report())

    @property
    def finished(self) -> bool:
        return self._final

    def listen(self, listener: Listener) -> None:
        """`listener` hears of every later change, too; also of the end."""
        with self._lock:
            self._settle()
            self._listeners = (*self._listeners, listener)

    def fire(self, *nodes: str) -> None:
        """`nodes` have been triggered and will start; one entry per execution."""
        self._tell(("fire", nodes))

    def start(self, node: str, *, caller: str | None = None) -> None:
        """One execution of `node` begins, inside of one of `caller` if given."""
        with self._lock:
            if self._final:
                return
            if self._ends:
                self._settle()
            self._observer.start(node, caller)
            changed = self._move(("start", node))
            update = self._report() if changed else None
        if changed:
            self._deliver(update)

    def end(self, node: str, *, caller: str | None = None) -> None:
        """One execution of `node` is over; its successors are next."""
        with self._lock:
            if self._final:
                return
            self._ends.append((node, caller))
            heard = bool(self._listeners) and self._settle()
            update = self._report() if heard else None
        self._deliver(update)

    def suspend(self, node: str) -> None:
        """One execution of `node` broke off and will be repeated: a retry, or an
        interrupt that waits for its answer."""
        self._tell(("suspend", node))

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
        with self._lock:
            if self._final:
                return
            self._settle()
            holding = self._position.frontier.holding
            ended = [name for name in holding if within(name, subtree)]
            self._observer.superstep(ended, nodes)
            changed = self._move(("superstep", nodes, subtree, _frozen(arrivals)))
            update = self._report() if changed else None
        if changed:
            self._deliver(update)

    def resume(
        self,
        *nodes: str,
        subtree: str | None = None,
        arrivals: Mapping[int, Iterable[str]] | None = None,
    ) -> None:
        """Go on in the superstep that was interrupted; `nodes` still have to run.

        `subtree` and `arrivals` as for `superstep`.
        """
        self._tell(("resume", nodes, subtree, _frozen(arrivals)))

    def pause(self) -> None:
        """Nothing executes until `resume`; what did will be repeated."""
        self._tell(("pause",))

    def finish(self) -> None:
        """The run is over, for good; later events change nothing."""
        with self._lock:
            if self._final:
                return
            self._settle()
            self._final = True
            frontier = self._position.frontier
            whole = not frontier.executing and not frontier.fired
            self._observer.finish(frontier.holding, whole=whole)
            self._steps, self._likelihood = NO_STEPS, None
            self._seq += 1
            update = self._snapshot()
        self._deliver(update)

    def snapshot(
        self, *, agent: str | None = None, fixed: FixedMark | None = None
    ) -> StepUpdate:
        """Where the run stands; with `agent` and `fixed`, as one of its calls says."""
        with self._lock:
            if self._ends:
                self._settle()
            if agent is not None:
                self._carried = self._seq
            return self._snapshot(agent, fixed)

    def told(self, update: StepUpdate, base_url: str) -> None:
        """All that this `snapshot` says goes with a call to `base_url`, which is made
        now: nobody has to send it there."""
        with self._lock:
            self._told = update.seq, base_url

    def carried(self) -> bool:
        """Whether a call has just told somebody where the run stands; whom, and when, is
        not known."""
        with self._lock:
            self._settle()
            told = self._told[0] == self._seq
            return self._seq == self._carried and not told and not self._final

    def unsent(self) -> tuple[StepUpdate, str | None] | None:
        """Where the run stands, if that has changed since this was asked last, and the
        server (its base URL) that a call has told already.

        None as well when the run is over: its last word was put.
        """
        with self._lock:
            self._settle()
            if self._final or self._seq == self._sent:
                return None
            self._sent = self._seq
            seq, base_url = self._told
            return self._snapshot(), base_url if seq == self._seq else None

    def _tell(self, event: Event) -> None:
        with self._lock:
            if self._final:
                return
            self._settle()
            changed = self._move(event)
            update = self._report() if changed else None
        if changed:
            self._deliver(update)

    def _settle(self) -> bool:
        """Take the ends into account; returns whether that changed any steps."""
        changed = False
        while self._ends:
            node, caller = self._ends.pop(0)
            self._observer.end(node, caller)
            changed = self._move(("end", node)) or changed
        return changed

    def _move(self, event: Event) -> bool:
        """Go where `event` leads; returns whether the steps there are others."""
        moved = self._position.moves.get(event)
        if moved is None:
            moved = self._positions.after(self._position, event)
        self._position, changed = moved
        if changed:
            self._arrive()
        return changed

    def _arrive(self) -> None:
        position, weights = self._position, self._weights
        self._steps = position.steps
        known = None if weights is None else position.likelihood(self.graph, weights)
        self._likelihood = known
        self._seq += 1

    def _report(self) -> StepUpdate | None:
        """What the listeners get of a change; None where there are none."""
        return self._snapshot() if self._listeners else None

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
        """Something has happened; `update` is for the listeners, and the last word."""
        if self._outbox is not None:
            if update is not None and update.final:
                self._outbox.put(update)
            else:
                self._outbox.touch(self)
        if update is None:
            return
        for listener in self._listeners:
            try:
                listener(update)
            except Exception:
                _logger.warning("a listener of run %s failed", self.id, exc_info=True)


def _frozen(arrivals: Mapping[int, Iterable[str]] | None) -> Arrivals:
    if not arrivals:
        return _NO_ARRIVALS
    return frozenset((group, frozenset(got)) for group, got in arrivals.items())
