"""AutoGen: `wrap` an AgentChat team, and each of its participants is an agent.

The wrapped team is used as the one it was made from: run, run_stream, save_state, as a
participant of another team. It shares all state with it. See `topology` for what is
read before a run and `tracking` for what is seen during one.

A single agent that runs by itself, with other agents as its tools, can be wrapped too.
"""

from __future__ import annotations

from typing import Any, TypeVar

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat

from kvflow_integrations.adapter import KVFlowWarning
from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .attachment import Attachment, Tracked, attach, release
from .topology import read_topology

__all__ = ["KVFlowWarning", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """A tracked object on the state of the team or agent `app`, itself unchanged.

    `name` prefixes its agents ("name|agent"); without it, the name that its author gave
    the team, if any. Raises `UnsupportedError`; warns with `KVFlowWarning`, once each,
    of what in the team is not fully understood.
    """
    if isinstance(app, Tracked):
        return app
    attachment = Attachment(_checked(app), client, name)
    for finding in attachment.topology.findings:
        attachment.notices.warn(finding, stacklevel=3)
    tracked: Any = attach(attachment)
    return tracked  # type: ignore[no-any-return]


def step_graph(app: object, name: str | None = None) -> AgentStepGraph | None:
    """What the team or agent `app` declares, with the names `wrap` would give it.

    None when it cannot be used. Raises `UnsupportedError`.
    """
    if isinstance(app, Tracked):
        return app._kvflow.topology.graph
    return read_topology(_checked(app), name).graph


def unwrap(app: _App) -> _App:
    """The object that `wrap` was given; runs of the wrapped one are tracked no more."""
    if not isinstance(app, Tracked):
        return app
    attachment = app._kvflow
    release(attachment)
    original: Any = attachment.original
    return original  # type: ignore[no-any-return]


def _checked(app: object) -> BaseGroupChat | BaseChatAgent:
    if isinstance(app, BaseGroupChat | BaseChatAgent):
        return app
    raise UnsupportedError(
        f"kvflow.wrap takes an AgentChat team or agent, not "
        f"{type(app).__module__}.{type(app).__qualname__}"
    )
