"""The Agent Step Graph of a compiled LangGraph graph.

Read from ``compiled.builder``, never from ``get_graph()``: the latter draws joins and
single edges alike, and loses what lies behind a router without declared targets.

    builder.edges           single edges: OR
    builder.waiting_edges   add_edge([a, b], c): AND
    builder.branches        conditional edges; `ends` is None when not declared
    spec.ends               the declared targets of a Command
    spec.defer              runs when nothing else does
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from langgraph.constants import END, START
from langgraph.pregel import Pregel

from kvflow_sdk import graph as step_graph
from kvflow_sdk.errors import GraphError
from kvflow_sdk.graph import AgentStepGraph, GraphBuilder

__all__ = ["Topology", "read_topology"]

_UNNAMED = "LangGraph"
"""The name of a graph that nobody named."""
_AGENT_LOOP = frozenset({"agent", "model", "tools"})
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of a graph before it runs."""

    graph: AgentStepGraph | None
    """None when the program has no static graph; its nodes carry `prefix`."""
    prefix: str
    """Before every node's name: the name of the graph, if it has one."""
    open_ended: frozenset[str]
    """Nodes that may go anywhere, as their router declares no targets."""
    findings: tuple[str, ...]
    """What is not understood; each names the construct and the node."""

    def agent(self, node: str) -> str:
        """The name of a LangGraph node on the wire."""
        return self.prefix + node

    def leads_to(self, sources: Iterable[str], node: str) -> bool:
        """Whether a declared edge or barrier goes from one of `sources` to `node`."""
        if self.graph is None:
            return True
        agents = {self.agent(source) for source in sources}
        return any(
            agents & self.graph.groups[group].sources
            for group in self.graph.triggers(self.agent(node))
        )


def read_topology(app: Pregel[Any, Any, Any, Any], name: str | None) -> Topology:
    """The topology of a compiled graph; `name` overrides the graph's own."""
    label = name or (app.name if app.name != _UNNAMED else None)
    prefix = f"{label}|" if label else ""
    builder = getattr(app, "builder", None)
    if builder is None:
        entry = ", ".join(repr(node) for node in app.nodes if node != START)
        finding = (
            f"functional API: entry point {entry} declares no graph, so it is "
            "not known beforehand what comes next"
        )
        return Topology(None, prefix, frozenset(), (finding,))
    reader = _Reader(app, builder, prefix)
    try:
        graph = reader.read()
    except GraphError as error:
        finding = f"graph {app.name!r} cannot be used: {error}"
        return Topology(None, prefix, frozenset(), (finding,))
    return Topology(graph, prefix, frozenset(reader.open_ended), tuple(reader.findings))


class _Reader:
    def __init__(self, app: Any, builder: Any, prefix: str) -> None:
        self._app = app
        self._source = builder
        self._prefix = prefix
        self._result = GraphBuilder()
        self._reached: set[str] = set()
        self.open_ended: list[str] = []
        self.findings: list[str] = []

    def read(self) -> AgentStepGraph:
        for name, spec in self._source.nodes.items():
            self._result.add_node(self._agent(name), deferred=bool(spec.defer))
        # The sets of the builder have another order in every process.
        for source, target in sorted(self._source.edges):
            self._edge(source, target)
        for sources, target in sorted(self._source.waiting_edges):
            self._barrier(sources, target)
        for name, spec in self._source.nodes.items():
            for target in spec.ends or ():
                self._edge(name, target, conditional=True)
        undeclared = [
            (source, label)
            for source, branches in self._source.branches.items()
            for label, branch in branches.items()
            if not self._branch(source, branch)
        ]
        candidates = self._unreached()
        for source, label in undeclared:
            self._open(source, label, candidates)
        self._look_inside()
        return self._result.build()

    def _agent(self, node: str) -> str:
        return step_graph.START if node == START else self._prefix + node

    def _edge(
        self,
        source: str,
        target: str,
        *,
        conditional: bool = False,
        unknown: bool = False,
    ) -> None:
        if target == END:
            return
        self._reached.add(target)
        self._result.add_edge(
            self._agent(source),
            self._agent(target),
            conditional=conditional,
            unknown=unknown,
        )

    def _barrier(self, sources: Iterable[str], target: str) -> None:
        if target == END:
            return
        self._reached.add(target)
        self._result.add_barrier(map(self._agent, sources), self._agent(target))

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
        for target in candidates:
            if target != source:
                self._edge(source, target, conditional=True, unknown=True)
        self.findings.append(
            f"router {label!r} of node {source!r} declares no targets; assumed are "
            f"{candidates}. Give add_conditional_edges a path map, or the router a "
            "Literal as return type"
        )

    def _look_inside(self) -> None:
        for name, node in self._app.nodes.items():
            if any(not _is_agent_loop(inner) for inner in node.subgraphs or ()):
                self.findings.append(
                    f"subgraph in node {name!r}: counted as one node, its calls are "
                    f"those of {name!r}"
                )


def _is_agent_loop(app: Any) -> bool:
    """``create_agent`` and its like: one agent that calls its model many times."""
    builder = getattr(app, "builder", None)
    return builder is not None and all(
        node in _AGENT_LOOP or node.endswith(_MIDDLEWARE) for node in builder.nodes
    )
