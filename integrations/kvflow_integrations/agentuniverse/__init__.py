"""agentUniverse's PEER template: `wrap` the agent, and its members are agents here too.

::

    peer = kvflow.wrap(AgentManager().get_instance_obj("my_peer_agent"))
    peer.run(input="How do rate cuts move bank stocks?")

The graph follows from the four members, `jump_step` and `retry_count`; KVFlow's agents
have the names that the members have in agentUniverse. Each of its prompts ends its
fixed part inside the user message, where the first placeholder stands, and is marked
there. Sub-tasks run in a thread pool of agentUniverse, which is followed.
"""

from __future__ import annotations

from typing import TypeVar

from agentuniverse.agent.template.peer_agent_template import PeerAgentTemplate

from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .attachment import Attachment, TrackedPeer, attach, release
from .topology import read_graph

__all__ = ["step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """A tracked copy of the PEER agent `app`, which stays as it is.

    `name` prefixes its agents. Raises `UnsupportedError`.
    """
    if isinstance(app, TrackedPeer):
        return app
    tracked: _App = attach(Attachment(_checked(app), client, name))
    return tracked


def step_graph(app: object, name: str | None = None) -> AgentStepGraph:
    """The graph that `wrap` would track. Raises `UnsupportedError`."""
    if isinstance(app, TrackedPeer):
        attachment: Attachment = vars(app)["_kvflow"]
        return attachment.graph
    return read_graph(_checked(app), name)


def unwrap(app: _App) -> _App:
    """The agent that `wrap` was given; anything else is returned as is."""
    if not isinstance(app, TrackedPeer):
        return app
    attachment: Attachment = vars(app)["_kvflow"]
    release(attachment)
    original: _App = attachment.original
    return original


def _checked(app: object) -> PeerAgentTemplate:
    if not isinstance(app, PeerAgentTemplate):
        raise UnsupportedError(
            f"kvflow.wrap takes an agent of agentUniverse's PEER template, not "
            f"{type(app).__module__}.{type(app).__qualname__}"
        )
    return app
