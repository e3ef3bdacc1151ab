"""The Agent Step Graph of an AgentChat team, read from the live object.

    RoundRobinGroupChat    each participant triggers the next one
    SelectorGroupChat      a node named after the team calls the model, anyone may follow
    Swarm                  the handoffs; without one the same agent goes on
    MagenticOneGroupChat   a star around a node named after the team
    GraphFlow              activation groups: `any` is OR, `all` is AND

Live, because ``dump_component`` loses callable conditions. ``DiGraphNode.activation`` is
not read: neither does AutoGen 0.7, only that of the edges counts.

A team inside a team is opened in place, its nodes named by their path. It may end
after any turn, so whatever follows it follows each of its nodes that may be the last.
An agent that another one calls as a tool runs while that one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from autogen_agentchat.agents import (
    CodeExecutorAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import ChatAgent
from autogen_agentchat.teams import (
    BaseGroupChat,
    DiGraph,
    DiGraphEdge,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool

from kvflow_sdk.graph import (
    SEPARATOR,
    START,
    AgentStepGraph,
    GraphBuilder,
    Group,
)

__all__ = ["Place", "Topology", "below", "read_topology"]

MAX_DEPTH = 16
"""Teams and tools inside each other; what lies deeper is not in the static graph."""


Barrier: TypeAlias = tuple[str, str, str]
"""An activation group of a GraphFlow: the team's path, the target, the group's name."""


@dataclass(frozen=True, slots=True)
class Place:
    """An agent or a team as its neighbours see it."""

    entries: tuple[str, ...]
    """The nodes that its activation triggers."""
    exits: tuple[str, ...]
    """The nodes of which any may be its last."""
    either: bool = False
    """Only one of the entries runs."""

    @classmethod
    def node(cls, name: str) -> Place:
        return cls((name,), (name,))


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of a team before it runs."""

    graph: AgentStepGraph | None
    """None when it cannot be used; `findings` say why."""
    path: str
    """Its own name on the wire, and that of its manager's model calls."""
    prefix: str
    """Before the name of every participant."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """By the name of every node, teams inside it included."""
    barriers: Mapping[Barrier, tuple[int, ...]] = field(default_factory=dict)
    """The groups of `graph` that activation groups became."""
    findings: tuple[str, ...] = ()

    def entries(self, node: str) -> tuple[str, ...]:
        """The nodes that run when `node` is activated."""
        place = self.places.get(node)
        return (node,) if place is None else place.entries

    def starting_at(self, nodes: Sequence[str]) -> AgentStepGraph | None:
        """The graph, entered at `nodes`: where a team goes on that ran before."""
        if self.graph is None or set(nodes) == set(self.graph.entry):
            return self.graph
        # The entries come last, so the numbers in `barriers` stay right.
        inner = tuple(g for g in self.graph.groups if START not in g.sources)
        entries = tuple(Group(node, frozenset([START])) for node in nodes)
        return AgentStepGraph(self.graph.nodes, inner + entries)


def below(path: str, name: str) -> str:
    """The name of what is called `name` inside `path`."""
    return f"{path}{SEPARATOR}{name}"


def read_topology(app: BaseGroupChat | ChatAgent, name: str | None) -> Topology:
    """The topology of a team, or of a single agent that runs by itself."""
    label = name or _own_label(app)
    prefix = below(label, "") if label else ""
    path = label or app.name
    if not isinstance(app, BaseGroupChat):
        path = prefix + app.name
    reader = _Reader()
    try:
        if isinstance(app, BaseGroupChat):
            place = reader.team(app, path, prefix, 0)
        else:
            place = reader.agent(app, path, 0)
        reader.result.add_entry(*place.entries, conditional=place.either)
        graph = reader.result.build()
    except Exception as error:
        # A team that AutoGen itself refuses to run, or of a version not known here.
        finding = f"team {app.name!r} cannot be used: {error!r}"
        return Topology(None, path, prefix, findings=(finding,))
    numbers = {(g.target, g.sources): n for n, g in enumerate(graph.groups)}
    barriers = {
        key: tuple(numbers[node, sources] for node in nodes)
        for key, (nodes, sources) in reader.barriers.items()
    }
    return Topology(
        graph, path, prefix, reader.places, barriers, tuple(reader.findings)
    )


class _Reader:
    def __init__(self) -> None:
        self.result = GraphBuilder()
        self.places: dict[str, Place] = {}
        self.barriers: dict[Barrier, tuple[tuple[str, ...], frozenset[str]]] = {}
        """The target's nodes, and the sources'."""
        self.findings: list[str] = []

    def team(self, team: BaseGroupChat, path: str, prefix: str, depth: int) -> Place:
        members = {
            participant.name: self.participant(participant, prefix, depth)
            for participant in team._participants
        }
        if isinstance(team, GraphFlow):
            place = self._graph_flow(team._graph, path, members)
        elif isinstance(team, SelectorGroupChat):
            place = self._selector(team, path, members, depth > 0)
        elif isinstance(team, Swarm):
            place = self._swarm(team, members)
        elif isinstance(team, MagenticOneGroupChat):
            place = self._star(path, members)
        elif isinstance(team, RoundRobinGroupChat):
            place = self._ring(list(members.values()), depth > 0)
        else:
            place = self._anything(team, members)
        self.places[path] = place
        return place

    def participant(self, participant: Any, prefix: str, depth: int) -> Place:
        node = prefix + participant.name
        if isinstance(participant, BaseGroupChat):
            return self._inner(participant, node, depth)
        if not isinstance(participant, SocietyOfMindAgent):
            return self.agent(participant, node, depth)
        # The team works first, then the agent sums up, which is its own call.
        inner = participant._team
        self.result.add_node(node)
        place = Place.node(node)
        if isinstance(inner, BaseGroupChat):
            found = self._inner(inner, below(node, inner.name), depth)
            self._connect(found, place)
            place = Place(found.entries, place.exits, found.either)
        self.places[node] = place
        return place

    def agent(self, agent: Any, node: str, depth: int) -> Place:
        """One agent, and what it may call as a tool."""
        self.result.add_node(node, agent=_calls_model(agent))
        for tool in _tools(agent):
            runner = tool._task_runner
            inner = below(node, runner.name)
            if inner in self.places:
                continue
            if depth >= MAX_DEPTH:
                self.findings.append(f"tool {inner!r} lies too deep; it is left out")
            elif isinstance(runner, BaseGroupChat):
                place = self._inner(runner, inner, depth)
                self._connect(Place.node(node), place, conditional=True)
            else:
                place = self.agent(runner, inner, depth + 1)
                self._connect(Place.node(node), place, conditional=True)
        self.places[node] = Place.node(node)
        return self.places[node]

    def _inner(self, team: BaseGroupChat, path: str, depth: int) -> Place:
        if depth >= MAX_DEPTH:
            self.findings.append(f"team {path!r} lies too deep; it counts as one node")
            self.result.add_node(path)
            return Place.node(path)
        return self.team(team, path, below(path, ""), depth + 1)

    def _connect(
        self, source: Place, target: Place, *, conditional: bool = False
    ) -> None:
        may = conditional or len(source.exits) > 1 or target.either
        for before in source.exits:
            for after in target.entries:
                self.result.add_edge(before, after, conditional=may)

    def _ring(self, members: Sequence[Place], ends: bool) -> Place:
        """`ends`: an outer workflow goes on after any of them."""
        for number, member in enumerate(members):
            following = members[(number + 1) % len(members)]
            self._connect(member, following, conditional=ends)
        return Place(members[0].entries, _exits(members), members[0].either)

    def _star(self, path: str, members: Mapping[str, Place]) -> Place:
        self.result.add_node(path)
        center = Place.node(path)
        for member in members.values():
            self._connect(center, member, conditional=True)
            self._connect(member, center)
        return center

    def _swarm(self, team: Swarm, members: Mapping[str, Place]) -> Place:
        for participant in team._participants:
            member = members[participant.name]
            # Without a handoff the same agent speaks again.
            self._connect(member, member, conditional=True)
            for target in _handoffs(participant):
                if target in members:
                    self._connect(member, members[target], conditional=True)
        every = list(members.values())
        return Place(every[0].entries, _exits(every), every[0].either)

    def _selector(
        self,
        team: SelectorGroupChat,
        path: str,
        members: Mapping[str, Place],
        ends: bool,
    ) -> Place:
        """The model selects, unless a function does or there is no choice."""
        every = list(members.values())
        by_function = team._selector_func is not None
        free = team._candidate_func is not None or team._allow_repeated_speaker
        first = Place.node(path) if len(every) > 1 else every[0]
        selects_again = len(every) > (1 if free else 2)
        if len(every) > 1:
            self.result.add_node(path)
            for member in every:
                self._connect(first, member, conditional=True)
        for member in every:
            if selects_again:
                self._connect(member, first, conditional=by_function or ends)
            others = [other for other in every if other is not member] or every
            for other in every if by_function else () if selects_again else others:
                self._connect(member, other, conditional=by_function or ends)
        if not by_function:
            return Place(first.entries, _exits(every), first.either)
        entries = (*first.entries, *(entry for m in every for entry in m.entries))
        return Place(tuple(dict.fromkeys(entries)), _exits(every), either=True)

    def _graph_flow(
        self, graph: DiGraph, path: str, members: Mapping[str, Place]
    ) -> Place:
        groups: dict[tuple[str, str], list[tuple[str, DiGraphEdge]]] = {}
        for source, node in graph.nodes.items():
            for edge in node.edges:
                key = (edge.target, edge.activation_group)
                groups.setdefault(key, []).append((source, edge))
        for (target, group), edges in groups.items():
            after = members[target]
            if edges[0][1].activation_condition == "any" or len(edges) == 1:
                for source, edge in edges:
                    may = _chooses(edge)
                    self._connect(members[source], after, conditional=may)
                continue
            # Only agents stand in a GraphFlow, and an agent has one last node.
            sources = frozenset(e for s, _ in edges for e in members[s].exits)
            may = any(_chooses(edge) for _, edge in edges)
            for entry in after.entries:
                self.result.add_barrier(sources, entry, conditional=may)
            self.barriers[path, target, group] = (after.entries, sources)
        starts = [members[name] for name in sorted(graph.get_start_nodes())]
        leaves = [members[name] for name in sorted(graph.get_leaf_nodes())]
        return Place(
            tuple(entry for start in starts for entry in start.entries), _exits(leaves)
        )

    def _anything(self, team: BaseGroupChat, members: Mapping[str, Place]) -> Place:
        """A team of the user's own: anyone may follow anyone."""
        kind = f"{type(team).__module__}.{type(team).__qualname__}"
        self.findings.append(
            f"team {team.name!r} is a {kind}, whose order is not known beforehand: any "
            "participant is taken to follow any other"
        )
        every = list(members.values())
        for before in every:
            for after in every:
                for source in before.exits:
                    for target in after.entries:
                        self.result.add_edge(
                            source, target, conditional=True, unknown=True
                        )
        entries = tuple(entry for member in every for entry in member.entries)
        return Place(entries, _exits(every), either=True)


def _own_label(app: Any) -> str | None:
    """The name that its author gave a team, if it is not that of its class."""
    if not isinstance(app, BaseGroupChat):
        return None
    unnamed = getattr(type(app), "DEFAULT_NAME", None)
    return None if app.name == unnamed else app.name


def _exits(places: Iterable[Place]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for place in places for name in place.exits))


def _chooses(edge: DiGraphEdge) -> bool:
    return edge.condition is not None or edge.condition_function is not None


def _handoffs(agent: Any) -> list[str]:
    while isinstance(agent, MessageFilterAgent):
        agent = agent._wrapped_agent
    return [handoff.target for handoff in getattr(agent, "_handoffs", {}).values()]


def _tools(agent: Any) -> list[TaskRunnerTool]:
    """The agents and teams that `agent` may call, of all its workbenches."""
    while isinstance(agent, MessageFilterAgent):
        agent = agent._wrapped_agent
    benches = getattr(agent, "_workbench", None) or ()
    tools = [tool for bench in benches for tool in getattr(bench, "_tools", ())]
    return [tool for tool in tools if isinstance(tool, TaskRunnerTool)]


def _calls_model(agent: Any) -> bool:
    """Whether `agent` has a prompt; one of the user's own kind is taken to."""
    while isinstance(agent, MessageFilterAgent):
        agent = agent._wrapped_agent
    if isinstance(agent, UserProxyAgent):
        return False
    return not (isinstance(agent, CodeExecutorAgent) and agent._model_client is None)
