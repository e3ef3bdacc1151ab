"""Where a LangGraph run stands, told to a `kvflow_sdk.run.Run`.

All of it happens to the tasks of one execution, never to the user's objects:

* ``PregelLoop.tick`` prepares the tasks of a superstep. The hook tells the run which,
  and puts each task's runnable into a `TrackedNode`, which says that the node starts
  and ends and makes it the current agent. Nothing public says so beforehand.
* The same is done for the tasks of error handlers and of the functional API, which are
  made in mid-superstep.

The loops of subgraphs are reached because a `Place` travels in a context variable.
Without a tracked run in the context every hook is inert.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph.constants import START

from kvflow_sdk.context import Extent, Scope, current_scope
from kvflow_sdk.run import Run

from .barriers import arrivals
from .nodes import TrackedNode, TrackedStart
from .topology import Level

if TYPE_CHECKING:
    from .attachment import Attachment

__all__ = ["PLACE", "Place", "Tracker", "place_here", "place_of"]

_GOING_ON = frozenset({"input", "pending"})
"""The status of a loop that has more supersteps to come."""

_live: weakref.WeakKeyDictionary[Run, Tracker] = weakref.WeakKeyDictionary()


class Place:
    """One graph in execution: the outermost of a run, or one opened inside a node."""

    def __init__(
        self,
        tracker: Tracker,
        level: Level | None,
        *,
        parent: Place | None = None,
        crowded: bool = False,
    ) -> None:
        self.tracker = tracker
        self.parent = parent
        self.level = level
        """None inside a node that is not opened: its graphs are nobody's business."""
        self.loop: Any = None
        self._crowded = crowded
        """Several of the same node at once (Send): one must not end another's step."""
        self._previous: list[str] = []
        self._first = True

    def prepared(self, loop: Any) -> None:
        """`loop` has made the tasks of its next superstep."""
        if self.level is None or self.tracker.run is None or not self._mine(loop):
            return
        tasks = list(loop.tasks.values())
        if not tasks:
            return
        if any(task.name == START for task in tasks):
            for task in tasks:
                self._put(loop, task, TrackedStart(task.proc, self))
            return
        if not self.tracker.attachment.topology.functional:
            self._announce(loop, tasks)
        widths = Counter(task.name for task in tasks)
        for task in tasks:
            self._put(loop, task, self._tracked(task, widths[task.name] > 1))

    def pushed(self, loop: Any, task: Any) -> Any:
        """`task` of the functional API was made; what is to run in its stead."""
        functional = self.tracker.attachment.topology.functional
        if self.level is None or not functional or not self._mine(loop):
            return task
        return self._put(loop, task, self._tracked(task, False))

    def handling(self, loop: Any, failed: Any, handler: Any) -> Any:
        """`handler` runs because the node of `failed` did not come to its end."""
        run = self.tracker.run
        if self.level is None or run is None or not self._mine(loop):
            return handler
        agent = self.level.agent(failed.name)
        # It is not tried again; what it triggers may still follow.
        run.start(agent)
        run.end(agent)
        run.fire(self.level.agent(handler.name))
        return self._put(loop, handler, self._tracked(handler, False))

    def begin(self) -> None:
        """The node begins, perhaps once more."""
        self.loop, self._first, self._previous = None, True, []

    def _mine(self, loop: Any) -> bool:
        if self.loop is not loop and getattr(self.loop, "status", "") not in _GOING_ON:
            self.begin()
            names = self.level.nodes if self.level is not None else frozenset()
            # A node may call other graphs than the one that was found in it.
            if names <= set(loop.nodes):
                self.loop = loop
        return self.loop is loop

    def _tracked(self, task: Any, crowded: bool) -> TrackedNode:
        assert self.level is not None
        inner = self.level.inner.get(task.name)
        crowded = crowded or self._crowded
        place = Place(self.tracker, inner, parent=self, crowded=crowded)
        return TrackedNode(task.proc, self.level.agent(task.name), place)

    def _put(self, loop: Any, task: Any, proc: Any) -> Any:
        loop.tasks[task.id] = replace(task, proc=proc)
        return loop.tasks[task.id]

    def _announce(self, loop: Any, tasks: list[Any]) -> None:
        run, level = self.tracker.run, self.level
        assert run is not None
        assert level is not None
        # Those with writes are done: an interrupted superstep goes on without them.
        waiting = [level.agent(task.name) for task in tasks if not task.writes]
        first, self._first = self._first, False
        if self._crowded and level.host is not None:
            if not first:
                run.fire(*waiting)
            return
        graph = self.tracker.attachment.topology.graph
        known = {}
        if first and graph is not None:
            known = dict(arrivals(graph, level, loop.channels))
        if first and self.tracker.resumes(level):
            done = [level.agent(task.name) for task in tasks if task.writes]
            if self.tracker.fresh:
                for agent in done:
                    run.start(agent)
                    run.end(agent)
            run.resume(*waiting, subtree=level.host, arrivals=known)
        else:
            run.superstep(*waiting, subtree=level.host, arrivals=known)
            self._compare(tasks)
        self._previous = [level.agent(task.name) for task in tasks]

    def _compare(self, tasks: list[Any]) -> None:
        """Say what the static graph did not foresee."""
        attachment, level = self.tracker.attachment, self.level
        if level is None or not self._previous:
            return
        open_ended = {level.agent(node) for node in level.open_ended}
        for task in tasks:
            agent = level.agent(task.name)
            if (
                open_ended.isdisjoint(self._previous)
                and task.name not in level.deferred
                and not attachment.topology.leads_to(self._previous, agent)
            ):
                attachment.notices.warn_in_run(
                    f"Command or Send to node {agent!r} from one of {self._previous}: "
                    "no declared edge leads there, so it is not seen coming until a "
                    "few runs have shown it. Annotate the node with "
                    "Command[Literal[...]], or give kvflow.wrap targets="
                )


PLACE: ContextVar[Place | None] = ContextVar("kvflow_langgraph_place", default=None)


class Tracker(Extent):
    """One invocation of a wrapped graph, from the first superstep to the last."""

    def __init__(self, attachment: Attachment, thread: str | None, goes_on: bool):
        self.attachment = attachment
        self.run: Run | None = None
        self.fresh = True
        """Not the run that was interrupted, in this process, before."""
        self.place = Place(self, attachment.topology.level)
        self._thread = thread
        self._goes_on = goes_on
        self._interrupted = False
        self._completed = False
        self._inside = False

    def open(self) -> Scope:
        outer = current_scope()
        self.run, known = self.attachment.start_run(self._thread, self._goes_on)
        if self.run is None:
            return outer
        self.fresh = known is None
        self._inside = bool(known)
        _live[self.run] = self
        return Scope(self.run, outer.call)

    def resumes(self, level: Level) -> bool:
        """Whether the first superstep of `level` is one that had begun before."""
        if level.host is None:
            return self._inside if not self.fresh else self._goes_on
        return self._goes_on

    def complete(self) -> None:
        """The graph came to an end without an exception; it may wait for an answer."""
        self._completed = True

    def close(self) -> None:
        if self.run is None:
            return
        status = getattr(self.place.loop, "status", "")
        self.place.loop = None
        if self._completed and (self._interrupted or status.startswith("interrupt")):
            self.run.pause()
            self.attachment.park(self._thread, self.run, self._interrupted)
        else:
            self.run.finish()

    def interrupted(self) -> None:
        """A node waits for an answer."""
        self._interrupted = True


def place_here() -> Place | None:
    """Where a loop that begins here runs; None outside of a tracked run."""
    run = current_scope().run
    tracker = None if run is None else _live.get(run)
    if tracker is None:
        return None
    place = PLACE.get()
    # Of an outer run, when one wrapped graph runs inside another.
    return place if place is not None and place.tracker is tracker else tracker.place


def place_of(loop: Any) -> Place | None:
    """Where `loop` runs that has begun before, perhaps with a node of it in between."""
    place = place_here()
    while place is not None and place.loop is not loop:
        place = place.parent
    return place
