"""Where a LangGraph run stands, told to a `kvflow_sdk.run.Run`.

Two seams, both on a copy of the graph or inert without one:

* every node's runnable is put into `TrackedNode`, which says that the node starts and
  ends and makes it the current agent;
* ``PregelLoop.tick`` prepares the tasks of a superstep; the hook tells the run which.
  Nothing public says so before the first of them starts.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.constants import START
from langgraph.errors import GraphInterrupt, ParentCommand

from kvflow_sdk.context import Call, Extent, Scope, current_scope, within
from kvflow_sdk.run import Run

if TYPE_CHECKING:
    from .attachment import Attachment

__all__ = ["TrackedNode", "Tracker", "hook_tick"]

_PUSH = "__pregel_push"
"""First element of the path of a task that a Send made."""

_live: weakref.WeakKeyDictionary[Run, Tracker] = weakref.WeakKeyDictionary()


class Tracker(Extent):
    """One invocation of a wrapped graph, from the first superstep to the last."""

    def __init__(self, attachment: Attachment, thread: str | None, goes_on: bool):
        self.attachment = attachment
        self.run: Run | None = None
        self._thread = thread
        self._goes_on = goes_on
        self._loop: Any = None
        self._previous: list[str] = []
        self._interrupted = False
        self._completed = False
        self._resuming = False

    def open(self) -> Scope:
        outer = current_scope()
        self.run, self._resuming = self.attachment.start_run(
            self._thread, self._goes_on
        )
        if self.run is None:
            return outer
        _live[self.run] = self
        return Scope(self.run, outer.call)

    def complete(self) -> None:
        """The graph came to an end without an exception; it may wait for an answer."""
        self._completed = True

    def close(self) -> None:
        if self.run is None:
            return
        status = getattr(self._loop, "status", "")
        self._loop = None
        if self._completed and (self._interrupted or status.startswith("interrupt")):
            self.run.pause()
            self.attachment.park(self._thread, self.run, self._interrupted)
        else:
            self.run.finish()

    def prepared(self, loop: Any) -> None:
        """`loop` has made the tasks of its next superstep."""
        if self._loop is None:
            self._loop = loop
        if self.run is None or self._loop is not loop:
            # The loop of a graph inside one of our nodes.
            return
        tasks = list(loop.tasks.values())
        if not tasks or any(task.name == START for task in tasks):
            return
        # Those with writes are done: an interrupted superstep goes on without them.
        names = [task.name for task in tasks if not task.writes]
        agents = map(self.attachment.topology.agent, names)
        if self._resuming:
            self.run.resume(*agents)
            self._resuming = False
        else:
            self.run.superstep(*agents)
        self._compare(tasks)
        self._previous = [task.name for task in tasks]

    def _compare(self, tasks: list[Any]) -> None:
        """Say what the static graph did not foresee."""
        topology, notices = self.attachment.topology, self.attachment.notices
        for task in tasks:
            if task.path and task.path[0] == _PUSH:
                notices.warn_in_run(
                    f"Send to node {task.name!r}: how often it runs is not known "
                    "beforehand; it is counted while it runs"
                )
            elif (
                self._previous
                and topology.open_ended.isdisjoint(self._previous)
                and not topology.leads_to(self._previous, task.name)
                and not self._waited(task.name)
            ):
                notices.warn_in_run(
                    f"Command to node {task.name!r} from one of {self._previous}: no "
                    "declared edge leads there, so it was not seen coming. Annotate "
                    "the node with Command[Literal[...]], or give add_node "
                    "destinations="
                )

    def _waited(self, node: str) -> bool:
        """A deferred node runs long after what triggered it."""
        graph = self.attachment.topology.graph
        agent = self.attachment.topology.agent(node)
        return graph is not None and any(
            known.deferred for known in graph.nodes if known.name == agent
        )

    def node_failed(self, kind: type[BaseException]) -> None:
        if issubclass(kind, GraphInterrupt):
            self._interrupted = True


class TrackedNode(Runnable[Any, Any]):
    """A node with its writers, unchanged but for who is calling inside."""

    def __init__(
        self, inner: Runnable[Any, Any], node: str, attachment: Attachment
    ) -> None:
        self._inner = inner
        self._execution = functools.partial(_Execution, node, attachment)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        with self._execution():
            return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        with self._execution():
            return await self._inner.ainvoke(input, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        # LangGraph exhausts it inside the node's own task.
        with self._execution():
            async for chunk in self._inner.astream(input, config, **kwargs):
                yield chunk


class _Execution:
    """One execution of a node; does nothing when its graph is not tracked here."""

    def __init__(self, node: str, attachment: Attachment) -> None:
        self._agent = attachment.topology.agent(node)
        self._attachment = attachment
        self._tracker: Tracker | None = None
        self._within: within | None = None

    def __enter__(self) -> None:
        try:
            run = current_scope().run
            tracker = None if run is None else _live.get(run)
            if run is None or tracker is None:
                return
            if tracker.attachment is not self._attachment:
                return
            self._tracker = tracker
            run.start(self._agent)
            self._within = within(Scope(run, Call(run, self._agent)))
            self._within.__enter__()
        except Exception as error:
            self._attachment.count("start of a node", error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._within is not None:
                self._within.__exit__(kind, error, traceback)
            if self._tracker is None or self._tracker.run is None:
                return
            if kind is None or issubclass(kind, ParentCommand):
                self._tracker.run.end(self._agent)
            else:
                # A retry, or the answer to an interrupt, runs it again.
                self._tracker.node_failed(kind)
                self._tracker.run.suspend(self._agent)
        except Exception as failure:
            self._attachment.count("end of a node", failure)


def hook_tick(tick: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """``PregelLoop.tick`` that also tells the tracker; inert without one."""

    @functools.wraps(tick)
    def hooked(loop: Any) -> bool:
        try:
            more = tick(loop)
        except GraphInterrupt:
            # Breakpoints before a node: its task is prepared and will run later.
            _prepared(loop)
            raise
        _prepared(loop)
        return more

    return hooked


def _prepared(loop: Any) -> None:
    run = current_scope().run
    tracker = None if run is None else _live.get(run)
    if tracker is None:
        return
    try:
        tracker.prepared(loop)
    except Exception as error:
        tracker.attachment.count("superstep", error)
