"""A compiled graph and its tracked copy.

The user's graph is never changed: the copy shares everything with it except its nodes,
which are copies, and its class, a subclass with two methods overridden.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langgraph.pregel import Pregel
from langgraph.types import Command

from kvflow_integrations import adapter, calls, templates
from kvflow_integrations.adapter import Notices, tracked_class
from kvflow_sdk.client import Client
from kvflow_sdk.context import surround
from kvflow_sdk.run import Run

from . import hooks
from .topology import Targets, Topology, read_topology
from .tracking import Tracker

__all__ = ["Attachment", "TrackedGraph", "attach", "release"]

MAX_PAUSED = 256
"""Interrupted runs of one graph that wait for an answer; the oldest is given up."""


class Attachment(adapter.Attachment):
    """What belongs to one wrapped graph."""

    def __init__(
        self,
        original: Pregel[Any, Any, Any, Any],
        client: Client | None,
        name: str | None,
        targets: Targets | None = None,
    ) -> None:
        super().__init__(original, client)
        self.topology: Topology = read_topology(original, name, targets)
        self.notices = Notices()
        self._paused: dict[str, tuple[Run, bool]] = {}

    def start_run(
        self, thread: str | None, goes_on: bool
    ) -> tuple[Run | None, bool | None]:
        """The run of a new invocation, and whether it goes on inside a superstep.

        An invocation that answers an interrupt of `thread` goes on with its run; the
        second is None for a run that begins. No run when KVFlow is off.
        """
        client = self.usable()
        if client is None:
            return None, None
        with self._lock:
            paused = self._paused.pop(thread, None) if thread is not None else None
        if paused is not None:
            if goes_on:
                return paused
            paused[0].finish()
        try:
            return client.start_run(self.topology.graph), None
        except Exception as error:
            self.count("start of a run", error)
            return None, None

    def park(self, thread: str | None, run: Run, inside: bool) -> None:
        """`run` waits for an answer, `inside` a superstep or between two."""
        if thread is None:
            run.finish()
            return
        with self._lock:
            given_up = [self._paused.pop(thread, None)]
            if len(self._paused) >= MAX_PAUSED:
                given_up.append(self._paused.pop(next(iter(self._paused))))
            self._paused[thread] = (run, inside)
        for entry in given_up:
            if entry is not None:
                entry[0].finish()

    def tracker(self, input: Any, *configs: Mapping[str, Any] | None) -> Tracker:
        thread = None
        for config in configs:
            thread = (config or {}).get("configurable", {}).get("thread_id", thread)
        goes_on = input is None or isinstance(input, Command)
        return Tracker(self, None if thread is None else str(thread), goes_on)


class TrackedGraph(Pregel[Any, Any, Any, Any]):
    """Mixed into the class of a wrapped graph.

    Every way to run a graph (invoke, batch, events, as a node of another) ends in one
    of the two methods.
    """

    _kvflow: Attachment

    if not TYPE_CHECKING:  # the signatures stay those of the base class

        @functools.wraps(Pregel.stream)
        def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            tracker = self._kvflow.tracker(input, self.config, config)
            chunks = super().stream(input, config, **kwargs)

            def body() -> Generator[Any, None, None]:
                yield from chunks
                tracker.complete()

            return surround(body, lambda: tracker)()

        @functools.wraps(Pregel.astream)
        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            tracker = self._kvflow.tracker(input, self.config, config)
            chunks = super().astream(input, config, **kwargs)

            async def body() -> AsyncGenerator[Any, None]:
                async with aclosing(chunks):
                    async for chunk in chunks:
                        yield chunk
                tracker.complete()

            return surround(body, lambda: tracker)()

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        made = super().copy(update)
        made._kvflow = self._kvflow
        return made


def attach(attachment: Attachment) -> Any:
    """The tracked copy of ``attachment.original``."""
    original = attachment.original
    tracked: Any = object.__new__(tracked_class(TrackedGraph, type(original)))
    tracked.__dict__.update(vars(original))
    # LangGraph caches in them what it needs to run; the originals stay without.
    tracked.nodes = {name: copy.copy(node) for name, node in original.nodes.items()}
    tracked._kvflow = attachment
    hooks.patches.acquire()
    calls.patches.acquire()
    templates.patches.acquire()
    return tracked


def release(attachment: Attachment) -> None:
    """The tracked copy runs untracked from now on; the last one takes the patches."""
    attachment.release(calls.patches, templates.patches, hooks.patches)
