"""The patches of LangGraph's loop: the one table of what of it is touched.

Each calls what was there, with the same arguments, and then tells the `Place` that the
loop runs in. All but ``tick`` came after LangGraph 1.0 and are left out where absent.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.errors import GraphInterrupt
from langgraph.pregel import _loop

from kvflow_integrations.adapter import Patches, SharedPatches

from .tracking import Place, place_here, place_of

__all__ = ["patches"]

_SYNC = _loop.SyncPregelLoop
_ASYNC = _loop.AsyncPregelLoop


def _install(made: Patches) -> None:
    made.set(_loop.PregelLoop, "tick", _hook_tick(_loop.PregelLoop.tick))
    for owner, name, hook in (
        (_SYNC, "accept_push", _hook_push),
        (_ASYNC, "aaccept_push", _hook_apush),
        (_SYNC, "schedule_error_handler", _hook_handler),
        (_ASYNC, "aschedule_error_handler", _hook_ahandler),
    ):
        original = getattr(owner, name, None)
        if original is not None:
            made.set(owner, name, hook(original))


patches = SharedPatches(_install)
"""In place while any graph is wrapped."""


def _hook_tick(tick: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(tick)
    def hooked(loop: Any) -> bool:
        try:
            more = tick(loop)
        except GraphInterrupt:
            # Breakpoints before a node: its task is prepared and will run later.
            _told(place_here(), None, lambda place: place.prepared(loop))
            raise
        _told(place_here(), None, lambda place: place.prepared(loop))
        return more

    return hooked


def _hook_push(accept: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(accept)
    def hooked(loop: Any, *args: Any, **kwargs: Any) -> Any:
        task = accept(loop, *args, **kwargs)
        return task and _told(
            place_of(loop), task, lambda place: place.pushed(loop, task)
        )

    return hooked


def _hook_apush(accept: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(accept)
    async def hooked(loop: Any, *args: Any, **kwargs: Any) -> Any:
        task = await accept(loop, *args, **kwargs)
        return task and _told(
            place_of(loop), task, lambda place: place.pushed(loop, task)
        )

    return hooked


def _hook_handler(schedule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(schedule)
    def hooked(loop: Any, failed: Any, error: BaseException) -> Any:
        task = schedule(loop, failed, error)
        return task and _told(
            place_of(loop), task, lambda place: place.handling(loop, failed, task)
        )

    return hooked


def _hook_ahandler(
    schedule: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(schedule)
    async def hooked(loop: Any, failed: Any, error: BaseException) -> Any:
        task = await schedule(loop, failed, error)
        return task and _told(
            place_of(loop), task, lambda place: place.handling(loop, failed, task)
        )

    return hooked


def _told(place: Place | None, task: Any, tell: Callable[[Place], Any]) -> Any:
    """What `tell` returns; `task` itself outside of a tracked run, or when it fails."""
    if place is None:
        return task
    try:
        return tell(place)
    except Exception as error:
        place.tracker.attachment.count("superstep", error)
        return task
