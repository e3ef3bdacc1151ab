"""The Agent Step Graph of a classic GroupChat, read from the live object.

allowed_speaker_transitions_dict   who may follow whom; inverted where the user
                                   listed what is not allowed
speaker_selection_method           "auto" asks the model, unless only one may follow;
                                   "round_robin" takes the next one; "random",
                                   "manual" and a function choose among them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvflow_sdk.graph import SEPARATOR, START, AgentStepGraph, GraphBuilder

__all__ = ["Names", "read_graph"]

_UNNAMED = "chat_manager"
"""The name of a manager that nobody named."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a group chat's agents are called on the wire."""

    selector: str
    """Named after the manager, whose model selects."""
    prefix: str

    @classmethod
    def of(cls, manager: Any, name: str | None) -> Names:
        label = name or (manager.name if manager.name != _UNNAMED else None)
        return cls(label or manager.name, f"{label}{SEPARATOR}" if label else "")


def read_graph(chat: Any, names: Names, sender: Any = None) -> AgentStepGraph:
    """What `chat` declares; it begins with a message of `sender`."""
    builder = GraphBuilder()
    for agent in chat.agents:
        builder.add_node(names.prefix + agent.name, agent=bool(agent.llm_config))
    selectable: dict[str, None] = {}
    sources = [(names.prefix + agent.name, agent) for agent in chat.agents]
    first = sender if sender in chat.agents else None
    edges: list[tuple[str, str, bool]] = []
    for source, agent in [*sources, (START, first)]:
        after = [names.prefix + each.name for each in _candidates(chat, agent)]
        how = _method(chat, after)
        if how in ("auto", "function"):
            edges.append((source, names.selector, how == "function"))
            selectable.update(dict.fromkeys(after))
        if how == "function":
            everyone = [names.prefix + each.name for each in chat.agents]
            edges += [(source, target, True) for target in everyone]
        elif how == "round_robin":
            edges.append((source, names.prefix + _next(chat, agent).name, False))
        elif how != "auto":
            edges += [(source, target, len(after) > 1) for target in after]
    if selectable:
        builder.add_node(names.selector)
        edges += [(names.selector, target, True) for target in selectable]
    for source, target, conditional in edges:
        builder.add_edge(source, target, conditional=conditional)
    return builder.build()


def _candidates(chat: Any, last: Any) -> Sequence[Any]:
    """Who may speak after `last`; None stands for somebody outside."""
    agents: list[Any] = list(chat.agents)
    if last is None:
        return agents
    allowed = chat.allowed_speaker_transitions_dict
    if last not in allowed:
        return ()  # it has the last word
    repeats = chat.allow_repeat_speaker
    again = last in repeats if isinstance(repeats, list) else repeats is not False
    may = [each for each in agents if each in allowed[last] and (again or each != last)]
    # Where nobody is left, AutoGen takes everybody.
    return may or [each for each in agents if again or each != last]


def _method(chat: Any, after: Sequence[str]) -> str:
    if not isinstance(chat.speaker_selection_method, str):
        return "function"
    method = chat.speaker_selection_method.lower()
    return "only" if len(after) < 2 and method == "auto" else method


def _next(chat: Any, last: Any) -> Any:
    """AutoGen's ``next_agent``: the next one in the list that may speak."""
    return chat.next_agent(last or _NOBODY, list(_candidates(chat, last)))


class _Nobody:
    name = ""


_NOBODY = _Nobody()
