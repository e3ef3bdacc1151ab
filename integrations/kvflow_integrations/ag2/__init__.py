"""ag2's classic GroupChat (the package ``autogen``, up to ag2 0.14): `wrap` its manager.

The wrapped manager is used as the one it was made from, as the recipient of
``initiate_chat`` or ``a_initiate_chat``. It shares all state with it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from autogen import GroupChatManager

from kvflow_integrations import calls
from kvflow_integrations.adapter import KVFlowWarning, SharedPatches, on_same_state
from kvflow_sdk.client import Client
from kvflow_sdk.context import opened
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .topology import Names, read_graph
from .tracking import Attachment, ChatRun, Tracked, install

__all__ = ["KVFlowWarning", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")
_patches = SharedPatches(install)


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """A tracked object on the state of the manager `app`, itself unchanged.

    `name` prefixes its agents ("name|agent"); without it, the name that its author gave
    the manager, if any. Raises `UnsupportedError`.
    """
    if isinstance(app, Tracked):
        return app
    manager = _checked(app)
    attachment = Attachment(manager, client, Names.of(manager, name))
    tracked = on_same_state(manager, _TrackedManager, attachment)
    _patches.acquire()
    calls.patches.acquire()
    return tracked


def step_graph(app: object, name: str | None = None) -> AgentStepGraph | None:
    """What the manager's group chat declares, begun by somebody outside of it."""
    manager = _checked(app)
    names = manager._kvflow.names if isinstance(app, Tracked) else None
    return read_graph(manager.groupchat, names or Names.of(manager, name))


def unwrap(app: _App) -> _App:
    """The manager that `wrap` was given; chats of the wrapped one are tracked no more."""
    if not isinstance(app, Tracked):
        return app
    attachment = app._kvflow
    attachment.release(calls.patches, _patches)
    original: Any = attachment.original
    return original


def _checked(app: object) -> Any:
    if isinstance(app, GroupChatManager):
        return app
    raise UnsupportedError(
        f"kvflow.wrap takes the GroupChatManager of a classic group chat, not "
        f"{type(app).__module__}.{type(app).__qualname__}"
    )


class _TrackedManager(Tracked, GroupChatManager):
    """A reply of the manager is a chat."""

    def generate_reply(
        self, messages: Any = None, sender: Any = None, *more: Any, **settings: Any
    ) -> Any:
        with opened(ChatRun(self, sender)):
            return super().generate_reply(messages, sender, *more, **settings)

    async def a_generate_reply(
        self, messages: Any = None, sender: Any = None, *more: Any, **settings: Any
    ) -> Any:
        with opened(ChatRun(self, sender)):
            return await super().a_generate_reply(messages, sender, *more, **settings)
