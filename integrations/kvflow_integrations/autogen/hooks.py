"""The hooks in AutoGen, set while anything is wrapped.

They stand where AutoGen looks a method up anew each time (an agent's message handlers
are bound when it is made, so they cannot be hooked), and are inert for a team that no
tracked run knows:

    SequentialRoutedAgent.on_message_impl     a participant speaks, or the manager decides
    BaseGroupChatManager.publish_message      whom it asks to speak next
    SelectorGroupChatManager._select_speaker  its model selects
    GraphFlowManager.update_message_thread    what an activation group has received
    BaseGroupChat.run_stream                  a team inside another one
    TaskRunnerTool.run, run_stream            an agent that another one calls as a tool
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._base_group_chat_manager import (
    BaseGroupChatManager,
)
from autogen_agentchat.teams._group_chat._chat_agent_container import (
    ChatAgentContainer,
)
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatRequestPublish,
    GroupChatStart,
    GroupChatTeamResponse,
)
from autogen_agentchat.teams._group_chat._graph._digraph_group_chat import (
    GraphFlowManager,
)
from autogen_agentchat.teams._group_chat._selector_group_chat import (
    SelectorGroupChatManager,
)
from autogen_agentchat.teams._group_chat._sequential_routed_agent import (
    SequentialRoutedAgent,
)
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool

from kvflow_integrations.adapter import Patches
from kvflow_sdk.context import opened, surround

from .tracking import (
    Guarded,
    InnerTeam,
    Managing,
    Selecting,
    Speaking,
    ToolCall,
    level_of,
)

__all__ = ["install"]

_DECIDES = (GroupChatStart, GroupChatAgentResponse, GroupChatTeamResponse)
"""After any of these a manager may select who is next."""
_Method = Callable[..., Awaitable[Any]]


def install(patches: Patches) -> None:
    """Set the hooks; see above."""
    patches.set(
        SequentialRoutedAgent,
        "on_message_impl",
        _hook_message(SequentialRoutedAgent.on_message_impl),
    )
    patches.set(
        BaseGroupChatManager,
        "publish_message",
        _hook_publish(BaseGroupChatManager.publish_message),
    )
    patches.set(
        SelectorGroupChatManager,
        "_select_speaker",
        _hook_selection(SelectorGroupChatManager._select_speaker),
    )
    patches.set(
        GraphFlowManager,
        "update_message_thread",
        _hook_thread(GraphFlowManager.update_message_thread),
    )
    patches.set(BaseGroupChat, "run_stream", _hook_team(BaseGroupChat.run_stream))
    for name in ("run", "run_stream"):
        original = getattr(TaskRunnerTool, name)
        patches.set(TaskRunnerTool, name, _hook_tool(original))


def _hook_message(original: _Method) -> _Method:
    @functools.wraps(original)
    async def hooked(agent: Any, message: Any, ctx: Any) -> Any:
        extent = _turn_of(agent, message)
        if extent is None:
            return await original(agent, message, ctx)
        with opened(extent):
            return await original(agent, message, ctx)

    return hooked


def _turn_of(agent: Any, message: Any) -> Guarded | None:
    level = level_of(agent)
    if level is None:
        return None
    if isinstance(agent, ChatAgentContainer):
        if isinstance(message, GroupChatRequestPublish):
            return Speaking(level, agent._agent)
    elif isinstance(agent, BaseGroupChatManager) and isinstance(message, _DECIDES):
        return Managing(level, agent)
    return None


def _hook_publish(original: _Method) -> _Method:
    @functools.wraps(original)
    async def hooked(manager: Any, message: Any, topic_id: Any, **settings: Any) -> Any:
        level = level_of(manager)
        if level is not None and isinstance(message, GroupChatRequestPublish):
            # The topic of a participant is its name and the team's id.
            level.ask(topic_id.type.removesuffix(f"_{manager.id.key}"))
        return await original(manager, message, topic_id, **settings)

    return hooked


def _hook_selection(original: _Method) -> _Method:
    @functools.wraps(original)
    async def hooked(manager: Any, *args: Any, **settings: Any) -> Any:
        level = level_of(manager)
        if level is None:
            return await original(manager, *args, **settings)
        with opened(Selecting(level)):
            return await original(manager, *args, **settings)

    return hooked


def _hook_thread(original: _Method) -> _Method:
    @functools.wraps(original)
    async def hooked(manager: Any, messages: Sequence[Any]) -> Any:
        level = level_of(manager)
        if level is None:
            return await original(manager, messages)
        before = level.guard(level.left, manager, messages)
        done = await original(manager, messages)
        if before is not None:
            level.guard(level.received, manager, before)
        return done

    return hooked


def _hook_team(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def hooked(team: Any, **settings: Any) -> AsyncIterator[Any]:
        inner = InnerTeam(team)
        inner.open()
        try:
            async with aclosing(original(team, **settings)) as messages:
                async for message in messages:
                    yield message
        finally:
            inner.close()

    return hooked


def _hook_tool(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(tool: Any, *args: Any, **settings: Any) -> Any:
        around = surround(original, lambda: ToolCall(tool))
        return around(tool, *args, **settings)

    return hooked
