"""The Agent Step Graph of a compiled LangGraph graph.

Read from ``compiled.builder``, never from ``get_graph()``: the latter draws joins and
single edges alike, and loses what lies behind a router without declared targets.

    builder.edges           single edges: OR
    builder.waiting_edges   add_edge([a, b], c): AND
    builder.branches        conditional edges; `ends` is None when not declared
    spec.ends               the declared targets of a Command
    spec.defer              runs when nothing else does
    node.error_handler_node runs when the node fails

A subgraph is opened in place: what triggers its node triggers its entries, and what
follows its node follows its last nodes (all of those that certainly run, or one of
those that may be the last). An agent loop, as ``create_agent`` makes, is one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from langgraph.constants import END, START
from langgraph.pregel import Pregel

from kvflow_sdk import graph as step_graph
from kvflow_sdk.errors import GraphError
from kvflow_sdk.graph import SEPARATOR, AgentStepGraph, GraphBuilder

__all__ = ["Barrier", "Level", "Targets", "Topology", "read_topology"]

Targets = Mapping[str, Iterable[str]]
"""By node: where its router or its Command may lead, as the user says."""
Alternatives = list[frozenset[str]]
"""An OR over ANDs of agents."""

MAX_DEPTH = 16
"""Of subgraphs in subgraphs; what lies deeper belongs to the node above."""
MAX_ALTERNATIVES = 32
"""Ways in which one barrier over subgraphs may be complete; more are left out."""
_UNNAMED = "LangGraph"
"""The name of a graph that nobody named."""
_AGENT_LOOP = frozenset(
    {
        "agent",
        "generate_structured_response",
        "model",
        "post_model_hook",
        "pre_model_hook",
        "tools",
    }
)
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


@dataclass(frozen=True, slots=True)
class Barrier:
    """A join, and the channel in which LangGraph keeps who has arrived."""

    channel: str
    target: str
    members: Mapping[str, Alternatives]
    """By node that it waits for: the agents that stand for it."""


@dataclass(frozen=True, slots=True)
class Level:
    """One graph: the outermost, or a subgraph that is opened in place."""

    prefix: str = ""
    """Before the name of every node."""
    host: str | None = None
    """The node that the subgraph is in; None for the outermost graph."""
    nodes: frozenset[str] = frozenset()
    inner: Mapping[str, Level] = field(default_factory=dict)
    """By node: the subgraph in it, where that is opened."""
    barriers: tuple[Barrier, ...] = ()
    deferred: frozenset[str] = frozenset()
    open_ended: frozenset[str] = frozenset()
    """Nodes that may go anywhere, as their router declares no targets."""

    def agent(self, node: str) -> str:
        """The name of a LangGraph node on the wire."""
        return self.prefix + node


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of a graph before it runs."""

    graph: AgentStepGraph | None
    """None when the program has no static graph; its nodes carry the prefix."""
    level: Level
    findings: tuple[str, ...] = ()
    """What is not understood; each names the construct and the node."""

    @property
    def functional(self) -> bool:
        """Whether the graph has no supersteps of its own: the functional API."""
        return self.graph is None and not self.level.nodes

    def leads_to(self, sources: Iterable[str], agent: str) -> bool:
        """Whether a declared edge or barrier goes from one of `sources`, or from what
        is inside of it, to `agent`."""
        if self.graph is None:
            return True
        return any(
            member == source or member.startswith(source + SEPARATOR)
            for group in self.graph.triggers(agent)
            for member in self.graph.groups[group].sources
            for source in sources
        )


def read_topology(
    app: Pregel[Any, Any, Any, Any], name: str | None, targets: Targets | None = None
) -> Topology:
    """The topology of a compiled graph; `name` overrides the graph's own."""
    label = name or (app.name if app.name != _UNNAMED else None)
    prefix = f"{label}{SEPARATOR}" if label else ""
    if getattr(app, "builder", None) is None:
        return Topology(None, Level(prefix))
    reader = _Reader(targets or {}, prefix)
    try:
        level, _ = reader.read(app, prefix, None, ())
        graph = reader.build()
    except GraphError as error:
        nodes = frozenset(app.nodes) - {START}
        finding = f"graph {app.name!r} cannot be used: {error}"
        return Topology(None, Level(prefix, nodes=nodes), (finding,))
    return Topology(graph, level, tuple(reader.findings))


class _Reader:
    """Collects all levels into one graph."""

    def __init__(self, targets: Targets, prefix: str) -> None:
        self._result = GraphBuilder()
        self._targets = {prefix + node: set(ends) for node, ends in targets.items()}
        self._known: set[str] = set()
        self.findings: list[str] = []

    def read(
        self, app: Any, prefix: str, host: str | None, above: tuple[int, ...]
    ) -> tuple[Level, Alternatives]:
        """One level, and the agents that may be the last of it."""
        inner: dict[str, Level] = {}
        last: dict[str, Alternatives] = {}
        for name, spec in app.builder.nodes.items():
            agent = prefix + name
            self._known.add(agent)
            found = _subgraph(app.nodes[name], (*above, id(app)))
            # A function that calls a subgraph may call a model itself, too.
            silent = found is not None and app.nodes[name].bound is found
            self._result.add_node(
                agent,
                agent=not silent,
                deferred=bool(spec.defer),
                entrance=found is not None,
            )
            last[name] = [frozenset([agent])]
            if found is not None:
                inner[name], last[name] = self.read(
                    found, agent + SEPARATOR, agent, (*above, id(app))
                )
        reading = _LevelReader(self._result, app, prefix, host, last)
        reading.read(self._declared(app, prefix))
        self.findings += reading.findings
        level = Level(
            prefix,
            host,
            frozenset(app.builder.nodes),
            inner,
            tuple(reading.barriers),
            frozenset(n for n, spec in app.builder.nodes.items() if spec.defer),
            frozenset(reading.open_ended),
        )
        return level, reading.exits()

    def build(self) -> AgentStepGraph:
        if unknown := sorted(self._targets.keys() - self._known):
            raise GraphError(f"targets: there is no node {unknown[0]!r}")
        return self._result.build()

    def _declared(self, app: Any, prefix: str) -> dict[str, set[str]]:
        """What the user said of the nodes of this level."""
        there = {n: self._targets.get(prefix + n) for n in app.builder.nodes}
        return {name: ends for name, ends in there.items() if ends}


class _LevelReader:
    """The triggers of one level."""

    def __init__(
        self,
        result: GraphBuilder,
        app: Any,
        prefix: str,
        host: str | None,
        last: Mapping[str, Alternatives],
    ) -> None:
        self._result = result
        self._app = app
        self._source = app.builder
        self._prefix = prefix
        start = step_graph.START if host is None else host
        self._last = {START: [frozenset([start])], **last}
        self._reached: set[str] = set()
        self._certain: dict[str, set[str]] = {}
        self._leaving: set[str] = set()
        self._maybe_last: set[str] = set()
        self.barriers: list[Barrier] = []
        self.open_ended: list[str] = []
        self.findings: list[str] = []

    def read(self, declared: Mapping[str, Iterable[str]]) -> None:
        # The sets of the builder have another order in every process.
        for source, target in sorted(self._source.edges):
            self._edge(source, target)
        for sources, target in sorted(self._source.waiting_edges):
            self._barrier(sources, target)
        for name, spec in self._source.nodes.items():
            for target in (*(spec.ends or ()), *sorted(declared.get(name, ()))):
                self._jump(name, target)
            handler = getattr(self._app.nodes[name], "error_handler_node", None)
            if handler is not None and handler in self._source.nodes:
                self._jump(name, handler)
        undeclared = [
            (source, label)
            for source, branches in self._source.branches.items()
            for label, branch in branches.items()
            if not self._branch(source, branch) and source not in declared
        ]
        candidates = self._unreached()
        for source, label in undeclared:
            self._open(source, label, candidates)

    def exits(self) -> Alternatives:
        """The agents after which this level is over."""
        runs = self._surely_runs()
        leaves = [name for name in self._source.nodes if name not in self._leaving]
        certain = [name for name in leaves if name in runs]
        if certain:
            return self._all_of(certain)
        maybe = [n for n in self._source.nodes if n in self._maybe_last or n in leaves]
        chosen = maybe or list(self._source.nodes)
        return [group for name in chosen for group in self._last[name]]

    def _surely_runs(self) -> set[str]:
        """What is reached from the start without any choice."""
        found: set[str] = set()
        todo = [START]
        while todo:
            for target in self._certain.get(todo.pop(), set()) - found:
                found.add(target)
                todo.append(target)
        return found

    def _edge(
        self,
        source: str,
        target: str,
        *,
        conditional: bool = False,
        unknown: bool = False,
    ) -> None:
        if target == END:
            # An edge to the end and nowhere else: a leaf.
            if conditional:
                self._maybe_last.add(source)
            return
        self._reached.add(target)
        self._leaving.add(source)
        if not conditional:
            self._certain.setdefault(source, set()).add(target)
        for sources in self._last[source]:
            self._trigger(sources, target, conditional, unknown)

    def _jump(self, source: str, target: str) -> None:
        """A Command, or an error: from anywhere inside of `source`."""
        self._edge(source, target, conditional=True)
        prefix = self._prefix + source + SEPARATOR
        if target == END or self._last[source] == [frozenset([self._prefix + source])]:
            return
        for agent in self._result.names:
            if agent.startswith(prefix):
                self._trigger(frozenset([agent]), target, True, False)

    def _trigger(
        self, sources: frozenset[str], target: str, conditional: bool, unknown: bool
    ) -> None:
        agent = self._prefix + target
        if len(sources) > 1:
            self._result.add_barrier(sources, agent, conditional=conditional)
        else:
            (source,) = sources
            self._result.add_edge(
                source, agent, conditional=conditional, unknown=unknown
            )

    def _barrier(self, sources: tuple[str, ...], target: str) -> None:
        self._leaving.update(sources if target != END else ())
        if target == END:
            return
        self._reached.add(target)
        for source in sources:
            self._certain.setdefault(source, set()).add(target)
        for every in self._all_of(sources):
            self._trigger(every, target, False, False)
        self.barriers.append(
            Barrier(
                f"join:{'+'.join(sources)}:{target}",
                self._prefix + target,
                {source: self._last[source] for source in sources},
            )
        )

    def _all_of(self, nodes: Iterable[str]) -> Alternatives:
        ways = product(*(self._last[node] for node in nodes))
        return [frozenset[str]().union(*way) for way in islice(ways, MAX_ALTERNATIVES)]

    def _branch(self, source: str, branch: Any) -> bool:
        if branch.ends is None:
            return False
        for target in sorted(set(branch.ends.values())):
            self._edge(source, target, conditional=True)
        return True

    def _unreached(self) -> list[str]:
        """Where a router without declared targets may lead: what nothing else does."""
        return [
            name
            for name, spec in self._source.nodes.items()
            if name not in self._reached
            and not getattr(spec, "is_error_handler", False)
        ]

    def _open(self, source: str, label: str, candidates: list[str]) -> None:
        self.open_ended.append(source)
        self._leaving.add(source)
        self._maybe_last.add(source)
        for target in candidates:
            if target != source:
                self._edge(source, target, conditional=True, unknown=True)
        self.findings.append(
            f"router {label!r} of node {self._prefix + source!r} declares no targets; "
            f"assumed are {candidates}, until a few runs have shown others. Give "
            "add_conditional_edges a path map, the router a Literal as return type, "
            "or kvflow.wrap targets="
        )


def _subgraph(node: Any, above: Iterable[int]) -> Any:
    """The one graph in `node` that is to be opened, or None."""
    graphs = list(node.subgraphs or ())
    above = tuple(above)
    if len(graphs) != 1 or len(above) >= MAX_DEPTH:
        return None
    (found,) = graphs
    # One that is wrapped itself has runs of its own.
    tracked = hasattr(found, "_kvflow")
    if tracked or getattr(found, "builder", None) is None or id(found) in above:
        return None
    return None if _is_agent_loop(found) else found


def _is_agent_loop(app: Any) -> bool:
    """``create_agent`` and its like: one agent that calls its model many times."""
    return all(
        node in _AGENT_LOOP or node.endswith(_MIDDLEWARE) for node in app.builder.nodes
    )
