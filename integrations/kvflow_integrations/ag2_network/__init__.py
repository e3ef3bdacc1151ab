"""ag2 1.x: `wrap` the hub on which the agents meet.

Every channel that is opened on it is a run, whose agents speak in the order of the
channel's protocol: of a workflow, that of its ``TransitionGraph``. The hub is the very
object that it was, with one listener more, because its clients hold it already.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ag2.network import Channel, Hub

from kvflow_integrations import calls
from kvflow_integrations.adapter import KVFlowWarning, SharedPatches
from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import AgentStepGraph

from .topology import read_graph
from .tracking import Attachment, attachment_of, hub_of, install, members_of

__all__ = ["KVFlowWarning", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")
_patches = SharedPatches(install)


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """The hub `app`, whose channels are tracked from now on.

    `name` prefixes its agents ("name|agent"). Raises `UnsupportedError`.
    """
    hub = _checked(app)
    if attachment_of(hub) is None:
        Attachment(hub, client, name or "").attach()
        _patches.acquire()
        calls.patches.acquire()
    return app


def step_graph(app: object, name: str | None = None) -> AgentStepGraph | None:
    """What a channel declares; None for a hub: its channels are opened as it runs.

    `app`: a hub, or a ``Channel`` of one in this process. Raises `UnsupportedError`.
    """
    if not isinstance(app, Channel):
        _checked(app)
        return None
    hub = hub_of(app._client)
    if hub is None:
        raise UnsupportedError("the hub of this channel runs in another process")
    attachment = attachment_of(hub) or Attachment(hub, None, name or "")
    return read_graph(app.metadata, members_of(attachment, app.metadata))


def unwrap(app: _App) -> _App:
    """The hub as it was; runs of its channels are over, as far as KVFlow goes."""
    attachment = attachment_of(app)
    if attachment is not None:
        attachment.detach()
        attachment.release(calls.patches, _patches)
    return app


def _checked(app: object) -> Any:
    if isinstance(app, Hub):
        return app
    raise UnsupportedError(
        f"kvflow.wrap takes the Hub of ag2's network, in the process that runs it, not "
        f"{type(app).__module__}.{type(app).__qualname__}; around calls of Agent.ask "
        f"without a hub, use kvflow.step(name)"
    )
