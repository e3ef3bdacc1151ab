"""A PEER agent and its tracked copy.

The copy is of a subclass that opens a run and hands agentUniverse a work pattern of a
subclass, which says when a member starts and ends. What else is needed is patched, and
inert outside of a tracked member:

    Agent.process_prompt                            where the fixed part ends
    ExecutingAgentTemplate.customized_execute       who executes, for …
    ExecutingAgentTemplate.customized_async_execute
    ExecutingAgentTemplate._execute_subtask         … its pool's threads
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agentuniverse.agent.agent import Agent
from agentuniverse.agent.template.executing_agent_template import ExecutingAgentTemplate
from agentuniverse.agent.template.peer_agent_template import PeerAgentTemplate
from agentuniverse.agent.work_pattern.peer_work_pattern import PeerWorkPattern

from kvflow_integrations import adapter, calls
from kvflow_integrations.adapter import (
    Patches,
    SharedPatches,
    tracked_class,
    tracked_subclass,
)
from kvflow_sdk.agent import step, workflow
from kvflow_sdk.client import Client, usable_client
from kvflow_sdk.context import Scope, current, current_scope, fixed, within

from .topology import fixed_part, read_graph

__all__ = ["Attachment", "TrackedPeer", "attach", "release"]

_Hook = Callable[..., Any]

_scopes: weakref.WeakKeyDictionary[Any, Scope] = weakref.WeakKeyDictionary()
"""By InputObject of an executing agent: whose sub-tasks its threads work on."""


class Attachment(adapter.Attachment):
    """What belongs to one wrapped agent."""

    def __init__(self, original: Any, client: Client | None, name: str | None) -> None:
        super().__init__(original, client)
        self.graph = read_graph(original, name)
        self._prefix = f"{name}|" if name else ""

    def workflow(self) -> workflow:
        return workflow(self.graph, client=self.client)

    def step(self, member: Any) -> step:
        name = str(member.agent_model.info["name"])
        return step(f"{self._prefix}{name}", client=self.client)


class TrackedPeer(PeerAgentTemplate):
    """Mixed into the class of a wrapped agent."""

    if not TYPE_CHECKING:  # the signatures stay those of the base class

        def customized_execute(
            self, input_object, agent_input, memory, peer_work_pattern, **kwargs
        ):
            attachment = vars(self)["_kvflow"]
            execute = super().customized_execute
            if attachment.released:
                return execute(
                    input_object, agent_input, memory, peer_work_pattern, **kwargs
                )
            pattern = _track(peer_work_pattern, attachment)
            with attachment.workflow():
                return execute(input_object, agent_input, memory, pattern, **kwargs)

        async def customized_async_execute(
            self, input_object, agent_input, memory, peer_work_pattern, **kwargs
        ):
            attachment = vars(self)["_kvflow"]
            execute = super().customized_async_execute
            if attachment.released:
                return await execute(
                    input_object, agent_input, memory, peer_work_pattern, **kwargs
                )
            pattern = _track(peer_work_pattern, attachment)
            with attachment.workflow():
                return await execute(
                    input_object, agent_input, memory, pattern, **kwargs
                )


class TrackedPattern(PeerWorkPattern):
    """Mixed into the class of the work pattern of one run."""


def _stage(part: str) -> Callable[[_Hook], _Hook]:
    """``_invoke_<part>`` with the member's execution around it."""

    def around(invoke: _Hook) -> _Hook:
        @functools.wraps(invoke)
        def staged(self: Any, *args: Any) -> Any:
            member = getattr(self, part)
            if member is None:
                return invoke(self, *args)
            with vars(self)["_kvflow"].step(member):
                return invoke(self, *args)

        return staged

    return around


def _async_stage(part: str) -> Callable[[_Hook], _Hook]:
    def around(invoke: _Hook) -> _Hook:
        @functools.wraps(invoke)
        async def staged(self: Any, *args: Any) -> Any:
            member = getattr(self, part)
            if member is None:
                return await invoke(self, *args)
            with vars(self)["_kvflow"].step(member):
                return await invoke(self, *args)

        return staged

    return around


def _track(pattern: Any, attachment: Attachment) -> Any:
    """The pattern of this run, which agentUniverse makes anew for each."""
    kind: Any = type(pattern)
    pattern = copy.copy(pattern)
    object.__setattr__(pattern, "__class__", _tracked_pattern(kind))
    vars(pattern)["_kvflow"] = attachment
    return pattern


@functools.cache
def _tracked_pattern(kind: Any) -> Any:
    namespace: dict[str, Any] = {}
    for part in ("planning", "executing", "expressing", "reviewing"):
        for prefix, around in (("_", _stage), ("_async_", _async_stage)):
            name = f"{prefix}invoke_{part}"
            namespace[name] = around(part)(getattr(kind, name))
    return tracked_subclass(TrackedPattern, kind, namespace)


def attach(attachment: Attachment) -> Any:
    """The tracked copy of ``attachment.original``."""
    original = attachment.original
    tracked = copy.copy(original)
    # pydantic lets nobody set what is no field; the copy is ours alone.
    object.__setattr__(tracked, "__class__", tracked_class(TrackedPeer, type(original)))
    vars(tracked)["_kvflow"] = attachment
    _patches.acquire()
    calls.patches.acquire()
    return tracked


def release(attachment: Attachment) -> None:
    """The tracked copy runs untracked from now on; the last one takes the patches."""
    attachment.release(calls.patches, _patches)


def _install(patches: Patches) -> None:
    executing = ExecutingAgentTemplate
    patches.set(Agent, "process_prompt", _hook_prompt(Agent.process_prompt))
    for name, hook in (
        ("customized_execute", _hook_execute),
        ("customized_async_execute", _hook_async_execute),
        ("_execute_subtask", _hook_subtask),
    ):
        patches.set(executing, name, hook(getattr(executing, name)))


_patches = SharedPatches(_install)


def _hook_prompt(process: _Hook) -> _Hook:
    @functools.wraps(process)
    def hooked(agent: Any, *args: Any, **kwargs: Any) -> Any:
        prompt = process(agent, *args, **kwargs)
        if current() is not None:
            try:
                # Holds until the member's own scope is left.
                fixed(fixed_part(prompt)).__enter__()
            except Exception as error:
                client = usable_client()
                if client is not None:
                    client.counters.error("mark of a prompt", error)
        return prompt

    return hooked


def _hook_execute(execute: _Hook) -> _Hook:
    @functools.wraps(execute)
    def hooked(agent: Any, input_object: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is not None:
            _scopes[input_object] = current_scope()
        return execute(agent, input_object, *args, **kwargs)

    return hooked


def _hook_async_execute(execute: Callable[..., Awaitable[Any]]) -> _Hook:
    @functools.wraps(execute)
    async def hooked(agent: Any, input_object: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is not None:
            _scopes[input_object] = current_scope()
        return await execute(agent, input_object, *args, **kwargs)

    return hooked


def _hook_subtask(execute: _Hook) -> _Hook:
    @functools.wraps(execute)
    def hooked(
        agent: Any, subtask: Any, input_object: Any, *args: Any, **kwargs: Any
    ) -> Any:
        scope = _scopes.get(input_object)
        if scope is None:
            return execute(agent, subtask, input_object, *args, **kwargs)
        with within(scope):
            return execute(agent, subtask, input_object, *args, **kwargs)

    return hooked
