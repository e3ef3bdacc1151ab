"""The Agent Step Graph of a channel of an ag2 hub, read from what the hub keeps of it.

workflow     ``knobs["graph"]``, a TransitionGraph: after somebody has spoken, the first
             transition whose condition holds names the next speaker, else the default
discussion   the participants in a ring
consulting   the creator asks, the respondent answers
conversation of two: in turns

The hub lets the initial speaker begin, and nobody calls its model for that: the words
are sent by the program. So `START` is where it has spoken. A tool that returns a
``Handoff`` may lead anywhere, and one that returns ``Finish`` to the end.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ag2 import Agent
from ag2.network import (
    AgentTarget,
    Always,
    ChannelMetadata,
    Finish,
    FromSpeaker,
    Handoff,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from ag2.tools.final import FunctionTool

from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder

__all__ = ["Member", "read_graph"]


@dataclass(frozen=True, slots=True)
class Member:
    """A participant of a channel."""

    node: str
    """Its name on the wire."""
    human: bool
    agent: Agent[Any] | None
    """The object; None where this process has not seen it."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What may follow a speaker: the id of the next one, or None for the end."""

    next: str | None
    unknown: bool = False


def read_graph(
    channel: ChannelMetadata, members: Mapping[str, Member]
) -> AgentStepGraph | None:
    """What `channel` declares; None for a type that says nothing of who is next.

    `members`: its participants by id, in their order. Raises what ag2 raises for a
    graph that cannot be loaded.
    """
    graph = _transitions(channel, list(members))
    if graph is None:
        return None
    reader = _Reader(graph, channel.creator_id, members)
    builder = GraphBuilder()
    edges = list(reader.edges())
    named = {speaker for source, found in edges for speaker in (source, found.next)}
    for member_id, member in members.items():
        if member_id in named:
            builder.add_node(member.node, agent=not member.human)
    for source, outcome in edges:
        assert outcome.next is not None
        builder.add_edge(
            START if source is None else members[source].node,
            members[outcome.next].node,
            conditional=len(reader.after(source)) > 1,
            unknown=outcome.unknown,
        )
    return builder.build()


def _transitions(
    channel: ChannelMetadata, members: list[str]
) -> TransitionGraph | None:
    kind, creator = channel.manifest.type, channel.creator_id
    if kind == "workflow":
        return TransitionGraph.loads(channel.knobs["graph"])
    if kind == "discussion" or (kind == "conversation" and len(members) == 2):
        turns = [Transition(when=Always(), then=RoundRobinTarget())]
        return TransitionGraph(creator, turns)
    if kind == "consulting":
        return TransitionGraph.sequence(sorted(members, key=lambda m: m != creator))
    return None


class _Reader:
    """Ids stand for speakers; None stands for the beginning."""

    def __init__(
        self, graph: TransitionGraph, creator: str, members: Mapping[str, Member]
    ) -> None:
        self._graph = graph
        self._creator = creator
        self._members = members
        self._order = list(members)
        # The hub sorts at every turn, and keeps the order of equals.
        self._rules = sorted(graph.transitions, key=lambda rule: rule.priority)
        self._known: dict[str | None, tuple[_Outcome, ...]] = {}

    def edges(self) -> Iterator[tuple[str | None, _Outcome]]:
        """Of every speaker that can get the word; nobody leads to the beginning."""
        speakers: list[str | None] = [None]
        for speaker in speakers:
            for outcome in self.after(speaker):
                if outcome.next is None:
                    continue
                yield speaker, outcome
                if outcome.next not in speakers:
                    speakers.append(outcome.next)

    def after(self, speaker: str | None) -> tuple[_Outcome, ...]:
        """What may follow `speaker`, each possibility once, the certain ones first."""
        found = self._known.get(speaker)
        if found is None:
            every: dict[str | None, _Outcome] = {}
            for outcome in self._outcomes(speaker):
                known = every.get(outcome.next)
                if known is None or known.unknown:
                    every[outcome.next] = outcome
            found = self._known[speaker] = tuple(every.values())
        return found

    def _outcomes(self, speaker: str | None) -> Iterator[_Outcome]:
        who = self._graph.initial_speaker if speaker is None else speaker
        agent = None if speaker is None else self._members[speaker].agent
        returned = () if agent is None else tuple(_returned(agent))
        if Handoff in returned:
            others = (each for each in self._order if each != who)
            yield from (_Outcome(each, unknown=True) for each in others)
        if Finish in returned:
            yield _Outcome(None)
        for rule in self._rules:
            if isinstance(rule.when, FromSpeaker) and rule.when.agent_id != who:
                continue
            if isinstance(rule.when, ToolCalled) and not self._calls(
                speaker, rule.when.tool_name
            ):
                continue
            yield from self._targets(rule.then, who)
            if isinstance(rule.when, (FromSpeaker, Always)):
                return
        yield from self._targets(self._graph.default_target, who)

    def _calls(self, speaker: str | None, tool: str) -> bool:
        """Whether `speaker` may call `tool`: a text that the program sends does not."""
        if speaker is None or self._members[speaker].human:
            return False
        agent = self._members[speaker].agent
        return agent is None or any(
            each.name == tool or not isinstance(each, FunctionTool)
            for each in agent.tools
        )

    def _targets(self, target: Any, who: str) -> Iterable[_Outcome]:
        if isinstance(target, TerminateTarget):
            return [_Outcome(None)]
        if isinstance(target, AgentTarget):
            # An id that is no participant's: the channel waits for nobody.
            known = target.agent_id in self._members
            return [_Outcome(target.agent_id if known else None)]
        if isinstance(target, StayTarget):
            return [_Outcome(who)]
        if isinstance(target, RevertToInitiatorTarget):
            return [_Outcome(self._creator)]
        if isinstance(target, RoundRobinTarget):
            at = self._order.index(who) + 1
            return [_Outcome(self._order[at % len(self._order)])]
        # A target of the user's own decides when it is asked.
        return [_Outcome(None), *(_Outcome(each, unknown=True) for each in self._order)]


def _returned(agent: Agent[Any]) -> Iterator[object]:
    """What the functions among the agent's tools say that they return."""
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            try:
                hints = typing.get_type_hints(tool.model.call)
            except Exception:
                continue  # names that mean something only where the function stands
            yield hints.get("return")
