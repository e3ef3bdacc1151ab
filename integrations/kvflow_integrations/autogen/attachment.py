"""A team or an agent, and what `wrap` returns for it: another object on the same state.

A team cannot be copied: its runtime, its manager and its participants are one. So the
tracked object has the very ``__dict__`` of the original, which therefore goes through
what it would have gone through unwrapped, and a class of its own with one slot more.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._base_group_chat_manager import (
    BaseGroupChatManager,
)
from autogen_core import AgentId

from kvflow_integrations import adapter, calls
from kvflow_integrations.adapter import Notices, SharedPatches, on_same_state
from kvflow_sdk.client import Client
from kvflow_sdk.context import Scope, current_scope, surround

from .hooks import install
from .resume import restore, speakers
from .topology import Topology, read_topology
from .tracking import Guarded, Level, Tracker, running, tracker_here

__all__ = ["Attachment", "Tracked", "attach", "release"]

_patches = SharedPatches(install)


class Attachment(adapter.Attachment):
    """What belongs to one wrapped object."""

    def __init__(
        self,
        original: BaseGroupChat | BaseChatAgent,
        client: Client | None,
        name: str | None,
    ) -> None:
        super().__init__(original, client)
        self.topology: Topology = read_topology(original, name)
        self.notices = Notices()

    def track_team(
        self, team: BaseGroupChat, manager: BaseGroupChatManager | None
    ) -> Tracker | None:
        """A new run of `team`; None when it is not to be tracked, or part of another.

        `manager`: if the team ran before, or has loaded a state; it goes on from there.
        """
        client = self.usable()
        if client is None or tracker_here() is not None or running(team):
            return None
        topology = self.topology
        graph = topology.graph
        if manager is not None:
            names = speakers(manager, topology)
            nodes = [entry for name in names for entry in topology.entries(name)]
            graph = topology.starting_at(nodes) if nodes else graph
        tracker = Tracker(self, client.start_run(graph))
        level = Level(tracker, topology.path, topology.prefix, None)
        if manager is not None:
            restore(level, manager)
        tracker.enter_team(team._team_id, level)
        return tracker

    def track_agent(self) -> Tracker | None:
        """A new run of an agent by itself; None as for a team."""
        client = self.usable()
        if client is None or tracker_here() is not None:
            return None
        return Tracker(self, client.start_run(self.topology.graph))


class Tracked:
    """Mixed into the class of a wrapped object."""

    __slots__ = ()
    _kvflow: Attachment


class _TrackedTeam(Tracked, BaseGroupChat):
    """Every way to run a team ends in `run_stream`."""

    if not TYPE_CHECKING:  # the signature stays that of the base class

        @functools.wraps(BaseGroupChat.run_stream)
        async def run_stream(self, **settings: Any) -> AsyncGenerator[Any, None]:
            # No context variable is set here: a generator would leak it to its caller.
            tracker = await _begin(self, self._kvflow)
            try:
                async with aclosing(super().run_stream(**settings)) as messages:
                    async for message in messages:
                        yield message
            finally:
                if tracker is not None:
                    tracker.finish()


class _TrackedAgent(Tracked, BaseChatAgent):
    """A single agent, run by itself with the tools it has."""

    if not TYPE_CHECKING:

        @functools.wraps(BaseChatAgent.run)
        async def run(self, **settings: Any) -> Any:
            run = super().run
            return await surround(run, lambda: _AgentRun(self._kvflow))(**settings)

        @functools.wraps(BaseChatAgent.run_stream)
        async def run_stream(self, **settings: Any) -> AsyncGenerator[Any, None]:
            stream = super().run_stream
            around = surround(stream, lambda: _AgentRun(self._kvflow))
            async with aclosing(around(**settings)) as messages:
                async for message in messages:
                    yield message


class _AgentRun(Guarded):
    """One run of a wrapped agent."""

    what = "the run of an agent"

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(attachment)
        self._own = attachment
        self._tracker: Tracker | None = None

    def begin(self) -> Scope:
        self._tracker = self._own.track_agent()
        if self._tracker is None:
            return current_scope()
        node = self._own.topology.path
        self._tracker.run.superstep(node)
        self._tracker.run.start(node)
        return self._tracker.scope(node)

    def finish(self) -> None:
        if self._tracker is not None:
            self._tracker.finish()


async def _begin(team: BaseGroupChat, attachment: Attachment) -> Tracker | None:
    try:
        return attachment.track_team(team, await _manager_of(team))
    except Exception as error:
        attachment.count("start of a run", error)
        return None


async def _manager_of(team: BaseGroupChat) -> BaseGroupChatManager | None:
    """The team's manager, if there is one yet and its runtime shows it."""
    if not team._initialized or team._is_running:
        return None
    key = AgentId(type=team._group_chat_manager_topic_type, key=team._team_id)
    try:
        manager: Any = await team._runtime.try_get_underlying_agent_instance(key)
    except Exception:
        # A distributed runtime does not show it; then the run begins at the beginning.
        return None
    return manager if isinstance(manager, BaseGroupChatManager) else None


def attach(attachment: Attachment) -> Any:
    """The tracked object for ``attachment.original``."""
    original = attachment.original
    mixin = _TrackedTeam if isinstance(original, BaseGroupChat) else _TrackedAgent
    tracked = on_same_state(original, mixin, attachment)
    _patches.acquire()
    calls.patches.acquire()
    return tracked


def release(attachment: Attachment) -> None:
    """The tracked object runs untracked from now on; the last one takes the hooks."""
    attachment.release(calls.patches, _patches)
