"""LangGraph: `wrap` a compiled graph, and each of its nodes is an agent.

The wrapped graph is used as the one it was made from: invoke, ainvoke, stream, astream,
batch, events, state, also as a subgraph. See `topology` for what is read before a run
and `tracking` for what is seen during one.
"""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.pregel import Pregel

from kvflow_integrations.adapter import KVFlowWarning
from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .attachment import Attachment, TrackedGraph, attach, release
from .topology import Targets, read_topology

__all__ = ["KVFlowWarning", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")


def wrap(
    app: _App,
    *,
    client: Client | None = None,
    name: str | None = None,
    targets: Targets | None = None,
) -> _App:
    """A tracked copy of the compiled graph `app`, which itself stays as it is.

    `name` prefixes its agents ("name|node"); without it, the name that the graph was
    compiled with, if any. `targets` says where routers and Commands lead that do not
    declare it: {"node": ["this", "that"]}, a node in a subgraph by its path. Raises
    `UnsupportedError`; warns with `KVFlowWarning`, once each, of what in the graph is
    not fully understood.
    """
    if isinstance(app, TrackedGraph):
        return app
    attachment = Attachment(_compiled(app), client, name, targets)
    for finding in attachment.topology.findings:
        attachment.notices.warn(finding, stacklevel=3)
    tracked: Any = attach(attachment)
    return tracked  # type: ignore[no-any-return]


def step_graph(app: object, name: str | None = None) -> AgentStepGraph | None:
    """The Agent Step Graph of the compiled graph `app`, as `wrap` would use it.

    None when it declares none (the functional API). Raises `UnsupportedError`.
    """
    return read_topology(_compiled(app), name).graph


def unwrap(app: _App) -> _App:
    """The graph that `wrap` was given; runs of the wrapped one are tracked no more."""
    if not isinstance(app, TrackedGraph):
        return app
    attachment = app._kvflow
    release(attachment)
    original: Any = attachment.original
    return original  # type: ignore[no-any-return]


def _compiled(app: object) -> Pregel[Any, Any, Any, Any]:
    if isinstance(app, Pregel):
        return app
    hint = ": compile it first" if hasattr(app, "compile") else ""
    raise UnsupportedError(
        f"kvflow.wrap takes a compiled LangGraph graph, not "
        f"{type(app).__module__}.{type(app).__qualname__}{hint}"
    )
