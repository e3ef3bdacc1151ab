"""Where a team goes on that ran before, or has loaded a state that was saved.

Everything is in its manager: whose turn it is, and what a GraphFlow's activation groups
have received. Of the latter AutoGen saves the number only; whom it came from is read
off the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams._group_chat._base_group_chat_manager import (
    BaseGroupChatManager,
)
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import (
    GraphFlowManager,
)
from autogen_agentchat.teams._group_chat._round_robin_group_chat import (
    RoundRobinGroupChatManager,
)
from autogen_agentchat.teams._group_chat._swarm_group_chat import (
    SwarmGroupChatManager,
)

from .topology import Topology
from .tracking import Level

__all__ = ["restore", "speakers"]


def speakers(manager: BaseGroupChatManager, topology: Topology) -> list[str]:
    """The nodes of the participants who are next; empty when the manager has to choose."""
    names: Sequence[str] = ()
    if isinstance(manager, GraphFlowManager):
        names = list(manager._ready)
    elif isinstance(manager, RoundRobinGroupChatManager):
        names = [manager._participant_names[manager._next_speaker_index]]
    elif isinstance(manager, SwarmGroupChatManager):
        names = [_handed_to(manager)]
    return [topology.prefix + name for name in names]


def _handed_to(manager: SwarmGroupChatManager) -> str:
    for message in reversed(manager._message_thread):
        if isinstance(message, HandoffMessage):
            # Somebody outside, whose answer will name a participant.
            return (
                message.target
                if message.target in manager._participant_names
                else manager._current_speaker
            )
    return manager._current_speaker


def restore(level: Level, manager: BaseGroupChatManager) -> None:
    """Tell `level` what the activation groups have received already."""
    if not isinstance(manager, GraphFlowManager):
        return
    level.flow = manager
    recent: list[str] = []
    for message in reversed(manager._message_thread):
        if message.source not in recent:
            recent.append(message.source)
    for path, target, group in level.tracker.topology.barriers:
        if path != level.path:
            continue
        waits = manager._origin_remaining[target][group]
        missing = waits - manager._remaining[target][group]
        sources = _sources(manager, target, group)
        # Those who spoke last: an earlier turn has been used up.
        last = [name for name in recent if name in sources][: max(0, missing)]
        if last:
            level.arrived[target, group] = {level.prefix + name for name in last}


def _sources(manager: Any, target: str, group: str) -> set[str]:
    return {
        source
        for source, edges in manager._edges.items()
        if any((e.target, e.activation_group) == (target, group) for e in edges)
    }
