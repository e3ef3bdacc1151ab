"""OpenAI Agents SDK: `wrap` the agent that runs start with.

``Runner.run(kvflow.wrap(agent), …)``, ``run_sync`` and ``run_streamed`` are used as ever;
the agents that it hands over to, and those that are its tools, are tracked with it. This
adapter is the example of docs/ADDING_A_FRAMEWORK.md.
"""

from __future__ import annotations

from typing import Any, TypeVar

from agents import Agent

from kvflow_integrations import calls
from kvflow_integrations.adapter import KVFlowWarning, SharedPatches, on_same_state
from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .topology import read_graph
from .tracking import Attachment, Tracked, install

__all__ = ["KVFlowWarning", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")
_patches = SharedPatches(install)


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """A tracked object on the state of the agent `app`, itself unchanged.

    `name` prefixes its agents ("name|agent"). Raises `UnsupportedError`.
    """
    if isinstance(app, Tracked):
        return app
    agent = _checked(app)
    graph = read_graph(agent, name or "")
    attachment = Attachment(agent, graph, name or "", client)
    tracked = on_same_state(agent, Tracked, attachment)
    _patches.acquire()
    calls.patches.acquire()
    return tracked  # type: ignore[no-any-return]


def step_graph(app: object, name: str | None = None) -> AgentStepGraph | None:
    """What the agent `app` declares. Raises `UnsupportedError`."""
    if isinstance(app, Tracked):
        return app._kvflow.graph
    return read_graph(_checked(app), name or "")


def unwrap(app: _App) -> _App:
    """The agent that `wrap` was given; its runs are tracked no more."""
    if not isinstance(app, Tracked):
        return app
    attachment = app._kvflow
    attachment.release(calls.patches, _patches)
    original: Any = attachment.original
    return original  # type: ignore[no-any-return]


def _checked(app: object) -> Agent[Any]:
    if isinstance(app, Agent):
        return app
    raise UnsupportedError(
        f"kvflow.wrap takes an agent of the OpenAI Agents SDK, not "
        f"{type(app).__module__}.{type(app).__qualname__}"
    )
