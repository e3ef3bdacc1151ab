"""Where a group chat stands, told to a `kvflow_sdk.run.Run`.

A wrapped manager replies: that is a run. Its participants reply to it, one after
another, each a superstep; so is the little chat in which the model selects. The hooks
stand where AutoGen looks a method up anew; its reply functions are bound in a list.

In an async chat the model is called in a thread, which knows nothing of the context, so
who executes is remembered by the agent object, too.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from autogen import ConversableAgent, GroupChat

from kvflow_integrations import adapter
from kvflow_integrations.adapter import Patches
from kvflow_sdk.context import (
    Call,
    Extent,
    Scope,
    current,
    current_scope,
    opened,
    within,
)
from kvflow_sdk.run import Run

from .topology import Names, read_graph

if TYPE_CHECKING:
    from kvflow_sdk.client import Client

__all__ = ["Attachment", "ChatRun", "Tracked", "install"]

_chats: weakref.WeakKeyDictionary[Run, Attachment] = weakref.WeakKeyDictionary()
_scopes: dict[int, Scope] = {}
"""By id of an agent object: what it executes as, now."""


class Attachment(adapter.Attachment):
    """What belongs to one wrapped manager."""

    def __init__(self, original: Any, client: Client | None, names: Names) -> None:
        super().__init__(original, client)
        self.names = names


class Tracked:
    """Mixed into the class of a wrapped manager."""

    __slots__ = ()
    _kvflow: Attachment


class _Guarded(Extent):
    """An extent of which AutoGen never notices a failure."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.run: Run | None = None

    def begin(self) -> Scope:
        raise NotImplementedError

    def finish(self, run: Run) -> None:
        raise NotImplementedError

    def open(self) -> Scope:
        try:
            return self.begin()
        except Exception as error:
            self.attachment.count("a turn", error)
            return current_scope()

    def close(self) -> None:
        try:
            if self.run is not None:
                self.finish(self.run)
        except Exception as error:
            self.attachment.count("a turn", error)


class ChatRun(_Guarded):
    """A wrapped manager replies to the message that begins the chat."""

    def __init__(self, manager: Any, sender: Any) -> None:
        super().__init__(manager._kvflow)
        self._chat = manager.groupchat
        self._sender = sender

    def begin(self) -> Scope:
        outer = current_scope()
        client = self.attachment.usable()
        if client is None or outer.run in _chats:
            return outer
        graph = read_graph(self._chat, self.attachment.names, self._sender)
        self.run = client.start_run(graph)
        _chats[self.run] = self.attachment
        return Scope(self.run, outer.call)

    def finish(self, run: Run) -> None:
        run.finish()


class _Turn(_Guarded):
    """A participant, or the selector, has the word."""

    def __init__(self, attachment: Attachment, node: str, agent: Any = None) -> None:
        super().__init__(attachment)
        self._node = node
        self._agent = agent

    def begin(self) -> Scope:
        self.run = current_scope().run
        if self.run is None:
            return current_scope()
        self.run.superstep(self._node)
        self.run.start(self._node)
        scope = Scope(self.run, Call(self.run, self._node))
        if self._agent is not None:
            _scopes[id(self._agent)] = scope
        return scope

    def finish(self, run: Run) -> None:
        _scopes.pop(id(self._agent), None)
        run.end(self._node)


def _turn_of(agent: Any, sender: Any) -> _Turn | None:
    """The turn of `agent`, if it replies to the wrapped manager that runs here."""
    run = current_scope().run
    if run is None or not isinstance(sender, Tracked):
        return None
    attachment = sender._kvflow
    if _chats.get(run) is not attachment:
        return None
    return _Turn(attachment, attachment.names.prefix + agent.name, agent)


def install(patches: Patches) -> None:
    """Set the hooks; see above."""
    for owner, hooks in (
        (
            ConversableAgent,
            {
                "generate_reply": _hook_reply,
                "a_generate_reply": _hook_async_reply,
                "generate_oai_reply": _hook_call,
            },
        ),
        (
            GroupChat,
            {
                "_auto_select_speaker": _hook_selection,
                "a_auto_select_speaker": _hook_async_selection,
                "_create_internal_agents": _hook_selectors,
            },
        ),
    ):
        for name, hook in hooks.items():
            patches.set(owner, name, hook(getattr(owner, name)))


def _hook_reply(original: Any) -> Any:
    @functools.wraps(original)
    def hooked(
        agent: Any,
        messages: Any = None,
        sender: Any = None,
        *more: Any,
        **settings: Any,
    ) -> Any:
        turn = _turn_of(agent, sender)
        if turn is None:
            return original(agent, messages, sender, *more, **settings)
        with opened(turn):
            return original(agent, messages, sender, *more, **settings)

    return hooked


def _hook_async_reply(original: Any) -> Any:
    @functools.wraps(original)
    async def hooked(
        agent: Any,
        messages: Any = None,
        sender: Any = None,
        *more: Any,
        **settings: Any,
    ) -> Any:
        turn = _turn_of(agent, sender)
        if turn is None:
            return await original(agent, messages, sender, *more, **settings)
        with opened(turn):
            return await original(agent, messages, sender, *more, **settings)

    return hooked


def _hook_call(original: Any) -> Any:
    """In the thread of an async chat."""

    @functools.wraps(original)
    def hooked(agent: Any, *args: Any, **settings: Any) -> Any:
        scope = None if current() is not None else _scopes.get(id(agent))
        if scope is None:
            return original(agent, *args, **settings)
        with within(scope):
            return original(agent, *args, **settings)

    return hooked


def _selection() -> _Turn | None:
    run = current_scope().run
    attachment = None if run is None else _chats.get(run)
    return None if attachment is None else _Turn(attachment, attachment.names.selector)


def _hook_selection(original: Any) -> Any:
    @functools.wraps(original)
    def hooked(*args: Any, **settings: Any) -> Any:
        turn = _selection()
        if turn is None:
            return original(*args, **settings)
        with opened(turn):
            return original(*args, **settings)

    return hooked


def _hook_async_selection(original: Any) -> Any:
    @functools.wraps(original)
    async def hooked(*args: Any, **settings: Any) -> Any:
        turn = _selection()
        if turn is None:
            return await original(*args, **settings)
        with opened(turn):
            return await original(*args, **settings)

    return hooked


def _hook_selectors(original: Any) -> Any:
    """The agent that selects is made anew each time."""

    @functools.wraps(original)
    def hooked(*args: Any, **settings: Any) -> Any:
        made = original(*args, **settings)
        scope = current_scope()
        if scope.run in _chats and scope.call is not None:
            selector = made[1]
            _scopes[id(selector)] = scope
            weakref.finalize(selector, _scopes.pop, id(selector), None)
        return made

    return hooked
