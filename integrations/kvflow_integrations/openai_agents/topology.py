"""The Agent Step Graph of an agent of the OpenAI Agents SDK, and of all it may lead to.

agent.handoffs              a choice: the agent, or any of these, is next
agent.as_tool() in tools    runs while the agent does; named by its path
"""

from __future__ import annotations

from typing import Any

from agents import Agent, Handoff

from kvflow_sdk.graph import SEPARATOR, AgentStepGraph, GraphBuilder

__all__ = ["below", "read_graph"]

MAX_DEPTH = 8
"""Agents that are tools of each other; deeper ones are learned when they run."""


def below(path: str, name: str) -> str:
    """The name of what is called `name` inside `path`."""
    return f"{path}{SEPARATOR}{name}" if path else name


def read_graph(agent: Agent[Any], label: str) -> AgentStepGraph:
    """What `agent` declares; `label` stands before every name, if there is one."""
    reader = _Reader()
    reader.result.add_entry(reader.agent(agent, label, 0))
    return reader.result.build()


class _Reader:
    def __init__(self) -> None:
        self.result = GraphBuilder()
        self._known: set[str] = set()

    def agent(self, agent: Agent[Any], path: str, depth: int) -> str:
        """The node of `agent` inside `path`, with what it leads to."""
        node = below(path, agent.name)
        if node in self._known:
            return node
        self._known.add(node)
        self.result.add_node(node)
        for handoff in agent.handoffs:
            target = _target(handoff)
            if isinstance(target, Agent):
                after = self.agent(target, path, depth)
            else:
                after = self._unseen(below(path, target))
            self.result.add_edge(node, after, conditional=True)
        for tool in agent.tools:
            inner = getattr(tool, "_agent_instance", None)
            if isinstance(inner, Agent) and depth < MAX_DEPTH:
                after = self.agent(inner, node, depth + 1)
                self.result.add_edge(node, after, conditional=True)
        return node

    def _unseen(self, node: str) -> str:
        """A handoff of which only the name is known."""
        if node not in self._known:
            self._known.add(node)
            self.result.add_node(node)
        return node


def _target(handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | str:
    if isinstance(handoff, Agent):
        return handoff
    reference = handoff._agent_ref
    found = reference() if reference is not None else None
    return found if isinstance(found, Agent) else handoff.agent_name
