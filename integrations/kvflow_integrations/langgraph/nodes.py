"""What runs in the stead of a node: the node, with someone watching.

A node's runnable consists of its own code and of writers, among them its routers. A
router that calls a model is an agent of its own, ``node|router``; the node executes
until its routers have decided.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.constants import START
from langgraph.errors import GraphInterrupt, ParentCommand

from kvflow_sdk.context import Call, Scope, current, current_scope, within
from kvflow_sdk.graph import SEPARATOR

if TYPE_CHECKING:
    from .tracking import Place

__all__ = ["ROUTER", "TrackedNode", "TrackedStart"]

ROUTER = SEPARATOR + "router"
"""Behind the name of a node: its routers."""


class TrackedNode(Runnable[Any, Any]):
    """A node with its writers, unchanged but for who is calling inside."""

    def __init__(self, inner: Runnable[Any, Any], agent: str, place: Place) -> None:
        self._inner = _with_routers(inner, agent, place)
        self._execution = functools.partial(_Execution, agent, place)

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


class TrackedStart(Runnable[Any, Any]):
    """The beginning of a graph: no node, but it may have a router."""

    def __init__(self, inner: Runnable[Any, Any], place: Place) -> None:
        prefix = "" if place.level is None else place.level.prefix
        self._inner = _with_routers(inner, prefix + START, place)

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        return await self._inner.ainvoke(input, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for chunk in self._inner.astream(input, config, **kwargs):
            yield chunk


class _Router(Runnable[Any, Any]):
    """A router whose calls are its own."""

    def __init__(self, inner: Runnable[Any, Any], agent: str, place: Place) -> None:
        self._inner = inner
        self._agent = agent
        self._place = place

    def _scope(self) -> within:
        run = self._place.tracker.run
        scope = current_scope()
        if run is None or scope.run is not run:
            return within(scope)
        return within(Scope(run, Call(run, self._agent)))

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        with self._scope():
            return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Any:
        with self._scope():
            return await self._inner.ainvoke(input, config, **kwargs)


def _with_routers(
    inner: Runnable[Any, Any], agent: str, place: Place
) -> Runnable[Any, Any]:
    """`inner` with its routers watched; the very same when it has none."""
    steps = getattr(inner, "steps", None)
    if not steps or not any(map(_is_router, steps)):
        return _Router(inner, agent + ROUTER, place) if _is_router(inner) else inner
    watched: Any = copy.copy(inner)
    watched.steps = [
        _Router(step, agent + ROUTER, place) if _is_router(step) else step
        for step in steps
    ]
    return watched  # type: ignore[no-any-return]


def _is_router(step: Any) -> bool:
    # Bound methods of LangGraph's BranchSpec, made when the graph was compiled.
    owner = getattr(getattr(step, "func", None), "__self__", None)
    return type(owner).__name__ == "BranchSpec"


class _Execution:
    """One execution of a node."""

    def __init__(self, agent: str, place: Place) -> None:
        self._agent = agent
        self._place = place
        self._run = place.tracker.run
        self._caller: str | None = None
        self._within: within | None = None
        self._token: Token[Any] | None = None

    def __enter__(self) -> None:
        from .tracking import PLACE

        run = self._run
        if run is None:
            return
        try:
            call = current()
            if call is not None and call.run is run:
                self._caller = call.agent
            run.start(self._agent, caller=self._caller)
            self._place.begin()
            self._token = PLACE.set(self._place)
            self._within = within(Scope(run, Call(run, self._agent)))
            self._within.__enter__()
        except Exception as error:
            self._place.tracker.attachment.count("start of a node", error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from .tracking import PLACE

        try:
            if self._within is not None:
                self._within.__exit__(kind, error, traceback)
            if self._token is not None:
                PLACE.reset(self._token)
            if self._run is None:
                return
            if kind is None or issubclass(kind, ParentCommand):
                self._run.end(self._agent, caller=self._caller)
                return
            if issubclass(kind, GraphInterrupt):
                self._place.tracker.interrupted()
            # A retry, or the answer to an interrupt, runs it again.
            self._run.suspend(self._agent)
        except Exception as failure:
            self._place.tracker.attachment.count("end of a node", failure)
