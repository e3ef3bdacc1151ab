"""Where a team stands, told to a `kvflow_sdk.run.Run`.

A `Level` is one team that runs, the wrapped one or one inside it; a superstep of its
are the participants that its manager asked together. The other classes here are the
stretches of AutoGen's own code that matter, which `hooks` sets around it: a participant
speaks, a manager decides, an agent is called as a tool.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._base_group_chat_manager import (
    BaseGroupChatManager,
)
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import (
    GraphFlowManager,
)
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool

from kvflow_sdk.context import Call, Extent, Scope, current_scope
from kvflow_sdk.run import Run

from .topology import Topology, below

if TYPE_CHECKING:
    from .attachment import Attachment

__all__ = [
    "Guarded",
    "InnerTeam",
    "Level",
    "Managing",
    "Selecting",
    "Speaking",
    "ToolCall",
    "Tracker",
    "level_of",
    "running",
    "tracker_here",
]

_T = TypeVar("_T")
_Left: TypeAlias = tuple[str, dict[tuple[str, str], int]]
"""A sender; by target and activation group, how many it still waits for."""

_levels: dict[str, Level] = {}
"""The teams that run now, by AutoGen's team id."""
_trackers: weakref.WeakKeyDictionary[Run, Tracker] = weakref.WeakKeyDictionary()


class Tracker:
    """One run of a wrapped team, or of a wrapped agent, and of all that runs in it."""

    def __init__(self, attachment: Attachment, run: Run) -> None:
        self.attachment = attachment
        self.run = run
        self.teams: dict[str, Level] = {}
        self.in_place: dict[str, str] = {}
        """By id of a team that a participant stands for: its path."""
        self.sums_up: dict[str, str] = {}
        """By id of the team of a `SocietyOfMindAgent`: the node of the agent."""
        _trackers[run] = self

    @property
    def topology(self) -> Topology:
        return self.attachment.topology

    def scope(self, node: str) -> Scope:
        """Model calls inside are those of `node`."""
        return Scope(self.run, Call(self.run, node))

    def enter_team(self, team_id: str, level: Level) -> None:
        self.teams[team_id] = _levels[team_id] = level

    def leave_team(self, team_id: str) -> None:
        if _levels.get(team_id) is self.teams.pop(team_id, None):
            _levels.pop(team_id, None)

    def finish(self) -> None:
        for team_id in list(self.teams):
            self.leave_team(team_id)
        self.run.finish()


class Level:
    """One team that runs: the wrapped one, or one inside it."""

    def __init__(
        self, tracker: Tracker, path: str, prefix: str, subtree: str | None
    ) -> None:
        self.tracker = tracker
        self.run = tracker.run
        self.path = path
        self.prefix = prefix
        self.subtree = subtree
        """None for the wrapped team: its supersteps are those of the whole run."""
        self.flow: GraphFlowManager | None = None
        self.arrived: dict[tuple[str, str], set[str]] = {}
        """By target and activation group of a GraphFlow: the nodes it has received."""
        self._asked: list[str] = []

    def guard(self, step: Callable[..., _T], *args: Any) -> _T | None:
        """What `step` returns; None when it fails, which nobody shall notice."""
        try:
            return step(*args)
        except Exception as error:
            self.tracker.attachment.count("a team's state", error)
            return None

    def ask(self, participant: str) -> None:
        """The manager has asked `participant` to speak."""
        self._asked.append(participant)

    def begin_superstep(self) -> None:
        """Those who were asked together run together."""
        if not self._asked:
            return
        names, self._asked = self._asked, []
        entries = self.tracker.topology.entries
        nodes = [node for name in names for node in entries(self.prefix + name)]
        self.run.superstep(*nodes, subtree=self.subtree, arrivals=self._arrivals())

    def begin_call(self) -> None:
        """The manager's own model is next."""
        self.run.superstep(self.path, subtree=self.subtree)
        self.run.start(self.path)

    def end_call(self) -> None:
        self.run.end(self.path)

    def left(self, manager: GraphFlowManager, messages: Sequence[Any]) -> _Left:
        """What the targets of the last message's sender still wait for."""
        source = messages[-1].source if messages else ""
        keys = {(e.target, e.activation_group) for e in manager._edges.get(source, ())}
        return source, {(t, g): manager._remaining[t][g] for t, g in keys}

    def received(self, manager: GraphFlowManager, before: _Left) -> None:
        """The manager has passed a message on; `before` is what was `left`."""
        self.flow = manager
        source, counts = before
        for (target, group), count in counts.items():
            edges = [
                edge
                for edge in manager._edges[source]
                if (edge.target, edge.activation_group) == (target, group)
            ]
            # With two edges into one group, both conditions have to hold.
            if count - manager._remaining[target][group] >= len(edges):
                arrived = self.arrived.setdefault((target, group), set())
                arrived.add(self.prefix + source)

    def _arrivals(self) -> dict[int, set[str]]:
        """By number of the group, for all barriers of this team."""
        found: dict[int, set[str]] = {}
        if self.flow is None:
            return found
        for (path, target, group), numbers in self.tracker.topology.barriers.items():
            if path != self.path:
                continue
            left = self.flow._remaining[target][group]
            if left == self.flow._origin_remaining[target][group]:
                self.arrived.pop((target, group), None)
            for number in numbers:
                found[number] = self.arrived.get((target, group), set())
        return found


def level_of(agent: Any) -> Level | None:
    """The running team that `agent`, a manager or a container, belongs to."""
    # A team's members have its id as their key.
    return _levels.get(agent.id.key) if _levels else None


def running(team: BaseGroupChat) -> bool:
    """Whether a tracked run is in `team` now; AutoGen will refuse another."""
    return team._team_id in _levels


def tracker_here() -> Tracker | None:
    """The tracker of the run that the current code belongs to, if it is one of ours."""
    run = current_scope().run
    return None if run is None else _trackers.get(run)


class Guarded(Extent):
    """An extent of which AutoGen never notices a failure."""

    what = "a turn"

    def __init__(self, attachment: Attachment | None) -> None:
        self._attachment = attachment

    def begin(self) -> Scope:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def open(self) -> Scope:
        try:
            return self.begin()
        except Exception as error:
            self._count(error)
            return current_scope()

    def close(self) -> None:
        try:
            self.finish()
        except Exception as error:
            self._count(error)

    def _count(self, error: Exception) -> None:
        if self._attachment is not None:
            self._attachment.count(self.what, error)


class Speaking(Guarded):
    """A participant has been asked, and answers."""

    def __init__(self, level: Level, participant: Any) -> None:
        super().__init__(level.tracker.attachment)
        self._level = level
        self._participant = participant
        self._node = level.prefix + participant.name
        inner = participant
        if isinstance(participant, SocietyOfMindAgent):
            inner = participant._team
        self._inner = inner if isinstance(inner, BaseGroupChat) else None

    def begin(self) -> Scope:
        tracker = self._level.tracker
        self._level.begin_superstep()
        if self._inner is None:
            tracker.run.start(self._node)
        elif self._inner is self._participant:
            tracker.in_place[self._inner._team_id] = self._node
        else:
            path = below(self._node, self._inner.name)
            tracker.in_place[self._inner._team_id] = path
            tracker.sums_up[self._inner._team_id] = self._node
        return tracker.scope(self._node)

    def finish(self) -> None:
        if self._inner is not self._participant:
            self._level.run.end(self._node)


class Managing(Guarded):
    """The manager has heard something, and decides who is next."""

    what = "the choice of a speaker"

    def __init__(self, level: Level, manager: BaseGroupChatManager) -> None:
        super().__init__(level.tracker.attachment)
        self._level = level
        self._calls_model = isinstance(manager, MagenticOneOrchestrator)

    def begin(self) -> Scope:
        if self._calls_model:
            self._level.begin_call()
        # A condition, or a manager of the user's own, may call a model as well.
        return self._level.tracker.scope(self._level.path)

    def finish(self) -> None:
        if self._calls_model:
            self._level.end_call()
        self._level.begin_superstep()


class Selecting(Guarded):
    """The selector's model is asked who is next."""

    what = "the selection of a speaker"

    def __init__(self, level: Level) -> None:
        super().__init__(level.tracker.attachment)
        self._level = level

    def begin(self) -> Scope:
        self._level.begin_call()
        return self._level.tracker.scope(self._level.path)

    def finish(self) -> None:
        self._level.end_call()


class ToolCall(Guarded):
    """An agent called as a tool; it executes together with its caller."""

    what = "an agent called as a tool"

    def __init__(self, tool: TaskRunnerTool) -> None:
        self._tracker = tracker_here()
        super().__init__(self._tracker.attachment if self._tracker else None)
        self._runner = tool._task_runner
        self._node: str | None = None

    def begin(self) -> Scope:
        scope = current_scope()
        if self._tracker is None or scope.call is None:
            return scope
        if isinstance(self._runner, BaseGroupChat):
            return scope
        self._node = below(scope.call.agent, self._runner.name)
        self._tracker.run.start(self._node)
        return self._tracker.scope(self._node)

    def finish(self) -> None:
        if self._tracker is not None and self._node is not None:
            self._tracker.run.end(self._node)
            self._tracker.run.superstep(subtree=self._node)


class InnerTeam(Guarded):
    """A team that runs inside an agent or a team that is tracked."""

    what = "an inner team"

    def __init__(self, team: BaseGroupChat) -> None:
        self._tracker = tracker_here()
        super().__init__(self._tracker.attachment if self._tracker else None)
        self._team = team
        self._level: Level | None = None
        self._stays = False

    def begin(self) -> Scope:
        scope, team_id = current_scope(), self._team._team_id
        if self._tracker is None or scope.call is None or team_id in _levels:
            return scope
        path = self._tracker.in_place.pop(team_id, None)
        self._stays = path is not None
        path = path or below(scope.call.agent, self._team.name)
        self._level = Level(self._tracker, path, below(path, ""), path)
        self._tracker.enter_team(team_id, self._level)
        return scope

    def finish(self) -> None:
        if self._tracker is None or self._level is None:
            return
        self._tracker.leave_team(self._team._team_id)
        node = self._tracker.sums_up.pop(self._team._team_id, None)
        if node is not None:
            self._tracker.run.superstep(node, subtree=node)
            self._tracker.run.start(node)
        elif not self._stays:
            # Its last node leads to no other; the caller goes on.
            self._tracker.run.superstep(subtree=self._level.path)
