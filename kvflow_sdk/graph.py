"""The Agent Step Graph: which agents a workflow has and what triggers each of them.

A node is an agent invocation, or a plain node between two of them: it takes a step
but owns no KV. A node's triggers are an OR over *groups*; a group is an AND over
predecessors. That one form holds sequences, fan-out, barriers, conditional edges,
several single edges into one node, and loops::

    a ──► b ─┐                    groups of d:  {b, c}       waits for both
    │        ├─AND─► d ──► a      groups of a:  {START}, {d} either of them
    └───► c ─┘                    groups of b:  {a}

`START` is the source of the entry groups. It is no node, and neither is the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import GraphError
from .wire import MAX_NAME_CHARS

__all__ = [
    "SEPARATOR",
    "START",
    "AgentStepGraph",
    "GraphBuilder",
    "Group",
    "Node",
    "StepIndex",
]

START: Final = "__start__"
"""What triggers the entry nodes; the same word as LangGraph's."""
SEPARATOR: Final = "|"
"""Joins the names of a node and of what lies inside it to a path."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the workflow."""

    name: str
    agent: bool = True
    """False for a plain node, which calls no model."""
    deferred: bool = False
    """It waits until nothing else runs (LangGraph's ``defer=True``)."""
    entrance: bool = False
    """The beginning of an inner workflow that is opened in place: it takes no step,
    what it triggers runs in its stead. One that is an agent, too, counts as much as
    the nodes that it triggers."""


@dataclass(frozen=True, slots=True)
class Group:
    """One way to trigger `target`: when all of `sources` have arrived."""

    target: str
    sources: frozenset[str]
    conditional: bool = False
    """The source may choose otherwise; counted as possible."""
    unknown: bool = False
    """Assumed, because the program does not declare where this source goes."""


@dataclass(frozen=True, slots=True)
class StepIndex:
    """The graph in integers, made once, for the distance computation."""

    ids: Mapping[str, int]
    """Every node and, last, `START`."""
    names: tuple[str, ...]
    leaves: tuple[tuple[int, ...], ...]
    """By source id: the groups it is in."""
    targets: tuple[int, ...]
    """By group: the id of its target."""
    sizes: tuple[int, ...]
    """By group: how many sources it waits for."""
    deferred: tuple[bool, ...]
    special: tuple[bool, ...]
    """Whether it is deferred or an entrance."""
    entrances: Mapping[str, bool]
    """The entrances, and whether each is reported."""
    conditional: bool
    """Whether there is any conditional group."""


@dataclass(frozen=True, slots=True)
class AgentStepGraph:
    """A validated, immutable graph. Build one with `GraphBuilder` or `sequence`.

    Raises `GraphError`, naming the node, when the parts do not fit together.
    """

    nodes: tuple[Node, ...]
    groups: tuple[Group, ...]
    index: StepIndex = field(init=False, repr=False, compare=False)
    _into: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _from: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    memo: dict[Any, Any] = field(init=False, repr=False, compare=False)
    """For what is computed again and again from the same frontier (`run`)."""

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)
        _check_groups(self.nodes, self.groups)
        index = _index(self.nodes, self.groups)
        into: dict[str, list[int]] = {node.name: [] for node in self.nodes}
        for number, group in enumerate(self.groups):
            into[group.target].append(number)
        names = (*index.names, START)
        object.__setattr__(self, "memo", {})
        # The dataclass is frozen, and these three follow from the two fields.
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "_into", {k: tuple(v) for k, v in into.items()})
        object.__setattr__(self, "_from", dict(zip(names, index.leaves, strict=True)))

    @classmethod
    def sequence(cls, names: Iterable[str]) -> AgentStepGraph:
        """START → first → second → … → last."""
        builder = GraphBuilder()
        previous = START
        for name in names:
            builder.add_node(name).add_edge(previous, name)
            previous = name
        return builder.build()

    def __contains__(self, name: object) -> bool:
        return name in self._into

    def triggers(self, name: str) -> tuple[int, ...]:
        """The numbers in `groups` of the groups that trigger `name`."""
        return self._into.get(name, ())

    def feeds(self, name: str) -> tuple[int, ...]:
        """The numbers in `groups` of the groups that `name` is a source of."""
        return self._from.get(name, ())

    @property
    def entry(self) -> tuple[str, ...]:
        """The nodes that `START` triggers."""
        targets = (self.groups[number].target for number in self.feeds(START))
        return tuple(dict.fromkeys(targets))


class GraphBuilder:
    """Collects nodes and triggers in any order; `build` checks them together."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._groups: dict[tuple[str, frozenset[str]], Group] = {}

    def add_node(
        self,
        name: str,
        *,
        agent: bool = True,
        deferred: bool = False,
        entrance: bool = False,
    ) -> GraphBuilder:
        self._nodes.append(Node(name, agent, deferred, entrance))
        return self

    def add_edge(
        self,
        source: str,
        target: str,
        *,
        conditional: bool = False,
        unknown: bool = False,
    ) -> GraphBuilder:
        """`source` alone triggers `target`."""
        return self._add(Group(target, frozenset([source]), conditional, unknown))

    def add_barrier(
        self, sources: Iterable[str], target: str, *, conditional: bool = False
    ) -> GraphBuilder:
        """All of `sources` together trigger `target`."""
        return self._add(Group(target, frozenset(sources), conditional))

    def add_entry(self, *names: str, conditional: bool = False) -> GraphBuilder:
        """The beginning of the workflow triggers each of `names`."""
        for name in names:
            self.add_edge(START, name, conditional=conditional)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes so far."""
        return tuple(node.name for node in self._nodes)

    def build(self) -> AgentStepGraph:
        """The graph. Raises `GraphError` naming the node that does not fit."""
        return AgentStepGraph(tuple(self._nodes), tuple(self._groups.values()))

    def _add(self, group: Group) -> GraphBuilder:
        key = (group.target, group.sources)
        known = self._groups.get(key)
        # The same trigger said twice is as certain as the more certain of the two.
        self._groups[key] = (
            group
            if known is None
            else Group(
                *key,
                conditional=known.conditional and group.conditional,
                unknown=known.unknown and group.unknown,
            )
        )
        return self


def _check_nodes(nodes: tuple[Node, ...]) -> None:
    seen: set[str] = set()
    for node in nodes:
        if not 0 < len(node.name) <= MAX_NAME_CHARS:
            raise GraphError(
                f"node {node.name[:64]!r}: a name has 1 to {MAX_NAME_CHARS} "
                f"characters, not {len(node.name)}"
            )
        if node.name == START:
            raise GraphError(f"node {START!r}: this name is the beginning, not a node")
        if node.name in seen:
            raise GraphError(f"node {node.name!r}: declared twice")
        seen.add(node.name)


def _check_groups(nodes: tuple[Node, ...], groups: tuple[Group, ...]) -> None:
    names = {node.name for node in nodes}
    for group in groups:
        if group.target == START:
            raise GraphError(
                f"node {min(group.sources, default='')!r}: an edge leads to "
                f"{START!r}, which nothing can trigger"
            )
        if group.target not in names:
            raise GraphError(
                f"node {group.target!r}: the target of "
                f"{sorted(group.sources)} is not declared"
            )
        if not group.sources:
            raise GraphError(f"node {group.target!r}: a barrier without sources")
        if START in group.sources and len(group.sources) > 1:
            raise GraphError(
                f"node {group.target!r}: {START!r} cannot be part of a barrier; "
                "make it an entry of its own"
            )
        for source in group.sources - names - {START}:
            raise GraphError(
                f"node {source!r}: triggers {group.target!r} but is not declared"
            )


def _index(nodes: tuple[Node, ...], groups: tuple[Group, ...]) -> StepIndex:
    names = tuple(node.name for node in nodes)
    ids = {name: number for number, name in enumerate((*names, START))}
    leaves: list[list[int]] = [[] for _ in ids]
    for number, group in enumerate(groups):
        for source in group.sources:
            leaves[ids[source]].append(number)
    return StepIndex(
        ids=ids,
        names=names,
        leaves=tuple(map(tuple, leaves)),
        targets=tuple(ids[group.target] for group in groups),
        sizes=tuple(len(group.sources) for group in groups),
        deferred=tuple(node.deferred for node in nodes),
        special=tuple(node.deferred or node.entrance for node in nodes),
        entrances={node.name: node.agent for node in nodes if node.entrance},
        conditional=any(group.conditional for group in groups),
    )
