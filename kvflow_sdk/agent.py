"""Agents in plain Python: which function, or which block, is which agent.

::

    @kvflow.agent("planner")
    def plan(question): ...

    with kvflow.workflow(graph):
        plan(question)
        with kvflow.step("executor"):
            ...

Inside `workflow` all agents belong to that one run; inside an agent, to its run (both
are then executing). Any other outermost agent is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from . import wire
from .client import Client, owner_of, usable_client
from .context import Block, Call, Extent, Scope, current_scope, opened, surround
from .run import Run
from .wire import FixedMark

if TYPE_CHECKING:
    from .graph import AgentStepGraph

__all__ = ["Execution", "agent", "step", "workflow"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Block(Block[T]):
    """``with``, ``async with`` or decorator around extents of one kind.

    Every entry opens a new extent, so one object may be used again, also nested.
    """

    def __init__(self, extent: Callable[[], Extent]) -> None:
        self._extent = extent
        self._open: list[opened] = []

    def _entered(self, scope: Scope) -> T:
        raise NotImplementedError

    def __enter__(self) -> T:
        block = opened(self._extent())
        scope = block.__enter__()
        self._open.append(block)
        return self._entered(scope)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.pop().__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return surround(function, self._extent)


class step(_Block[Call | None]):  # noqa: N801 - used like a function
    """The block is one execution of the agent `name`.

    `fixed`: where the fixed part of its prompt ends, if the server shall not learn
    it. `client`: whose run it is, when this is the outermost agent. Raises `WireError`
    for a name or a mark that cannot be sent.
    """

    def __init__(
        self,
        name: str,
        *,
        fixed: FixedMark | None = None,
        client: Client | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f'give the agent a name, as in kvflow.agent("{name!r}")')
        wire.check_name(name, "agent")
        if fixed is not None:
            wire.check_fixed(fixed)
        super().__init__(lambda: Execution(name, fixed, client))

    def _entered(self, scope: Scope) -> Call | None:
        return scope.call


def agent(
    name: str, *, fixed: FixedMark | None = None, client: Client | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Every call of the decorated function is one execution of the agent `name`.

    For sync and async functions, generators and async generators. An agent executes
    until its function returns; a generator, until it is exhausted or closed.
    """
    return step(name, fixed=fixed, client=client)


class workflow(_Block[Run | None]):  # noqa: N801 - used like a function
    """The block is one run of a workflow; agents inside it belong to this run.

    With `graph` the server learns which agents come next. Without, it is learned from
    what happens: after a few runs KVFlow knows who follows whom, until then only who is
    executing (`likelihood`). None is entered when KVFlow is off.
    """

    def __init__(
        self, graph: AgentStepGraph | None = None, *, client: Client | None = None
    ) -> None:
        super().__init__(lambda: _RunExtent(graph, client))

    def _entered(self, scope: Scope) -> Run | None:
        return scope.run


class _RunExtent(Extent):
    __slots__ = ("_client", "_graph", "_run")

    def __init__(self, graph: AgentStepGraph | None, client: Client | None) -> None:
        self._graph = graph
        self._client = client
        self._run: Run | None = None

    def open(self) -> Scope:
        outer = current_scope()
        client = usable_client(self._client)
        if client is None:
            return outer
        try:
            self._run = client.start_run(self._graph)
        except Exception as error:
            client.counters.error("start of a run", error)
            return outer
        return Scope(self._run, outer.call)

    def close(self) -> None:
        if self._run is not None:
            with suppress(Exception):
                self._run.finish()


class Execution(Extent):
    """One execution of the agent `name`, in the current run or one of its own."""

    __slots__ = ("_caller", "_client", "_fixed", "_name", "_own", "_run")

    def __init__(
        self, name: str, fixed: FixedMark | None, client: Client | None
    ) -> None:
        self._name = name
        self._fixed = fixed
        self._client = client
        self._own: _RunExtent | None = None
        self._run: Run | None = None
        self._caller: str | None = None

    def open(self) -> Scope:
        scope = current_scope()
        if scope.run is None:
            self._own = _RunExtent(None, self._client)
            scope = self._own.open()
        run, call = scope.run, scope.call
        if run is None:
            return scope
        self._run = run
        if call is not None and call.run is run:
            self._caller = call.agent
        try:
            run.start(self._name, caller=self._caller)
        except Exception as error:
            _failed(run, "start of an agent", error)
        return Scope(run, Call(run, self._name, self._fixed))

    def close(self) -> None:
        if self._run is not None:
            try:
                self._run.end(self._name, caller=self._caller)
            except Exception as error:
                _failed(self._run, "end of an agent", error)
        if self._own is not None:
            self._own.close()


def _failed(run: Run, what: str, error: BaseException) -> None:
    client = owner_of(run)
    if client is not None:
        client.counters.error(what, error)
