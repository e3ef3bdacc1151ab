"""What a PEER agent declares: its members, where it jumps back to, their prompts."""

from __future__ import annotations

from string import Formatter
from typing import Any, Final

from agentuniverse.agent.agent_manager import AgentManager

from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder
from kvflow_sdk.wire import FixedMark

__all__ = ["MEMBERS", "fixed_part", "read_graph"]

MEMBERS: Final = ("planning", "executing", "expressing", "reviewing")


def read_graph(peer: Any, name: str | None) -> AgentStepGraph:
    """START ─► planning ─► executing ─► expressing ─► reviewing ─► back, perhaps.

    A member that is not registered is left out, as `PeerWorkPattern` does; without a
    reviewer, and with one round only, nothing leads back.
    """
    names = {part: _member(peer, part) for part in MEMBERS}
    prefix = f"{name}|" if name else ""
    agents = {part: f"{prefix}{known}" for part, known in names.items() if known}
    builder = GraphBuilder()
    previous = START
    for agent in dict.fromkeys(agents.values()):
        builder.add_node(agent).add_edge(previous, agent)
        previous = agent
    if "reviewing" in agents and peer.retry_count > 1 and peer.jump_step in MEMBERS:
        first = MEMBERS.index(peer.jump_step)
        target = next(agents[part] for part in MEMBERS[first:] if part in agents)
        builder.add_edge(agents["reviewing"], target, conditional=True)
    return builder.build()


def fixed_part(prompt: Any) -> FixedMark | None:
    """Where the first placeholder of a ChatPrompt stands; None for another prompt.

    Messages become messages of the call one by one, and a template's text up to its
    first field is the same in every call.
    """
    texts = [getattr(message, "content", None) for message in prompt.messages]
    chars = 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            return FixedMark(message=number - 1, chars=chars) if number else None
        chars = 0
        for literal, field, _, _ in Formatter().parse(text):
            chars += len(literal)
            if field is not None:
                return FixedMark(message=number, chars=chars)
    return FixedMark(message=len(texts) - 1, chars=chars) if texts else None


def _member(peer: Any, part: str) -> str | None:
    known = getattr(peer, f"{part}_agent_name")
    if not known or AgentManager().get_instance_obj(known, new_instance=False) is None:
        return None
    return str(known)
