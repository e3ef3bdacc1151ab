"""SGLang's front-end language: every ``@sgl.function`` is an agent of its name.

::

    backend = kvflow.wrap(sgl.RuntimeEndpoint("http://localhost:30000"))
    sgl.set_default_backend(backend)

The functions stay as they are. Those that are called inside ``kvflow.workflow(graph)``
belong to that run, a function that calls another one executes together with it, and
any other is a run of its own. Where the fixed part of a function's prompt ends is
learned by the server; a function that wants it right from the first call on says so
with SGLang's own scope::

    with s.var_scope(FIXED):
        s += INSTRUCTIONS
    s += question + sgl.gen("plan")
"""

from __future__ import annotations

from typing import TypeVar

from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

from kvflow_sdk.client import Client
from kvflow_sdk.errors import UnsupportedError

from .attachment import Attachment, TrackedEndpoint, attach, release
from .boundary import FIXED

__all__ = ["FIXED", "step_graph", "unwrap", "wrap"]

_App = TypeVar("_App")


def wrap(app: _App, *, client: Client | None = None, name: str | None = None) -> _App:
    """A tracked copy of the `sgl.RuntimeEndpoint` `app`, which stays as it is.

    Who wraps an endpoint says that its server is KVFlow. `name` prefixes the agents
    that run on it. Raises `UnsupportedError`.
    """
    if isinstance(app, TrackedEndpoint):
        return app
    _check(app)
    tracked: _App = attach(Attachment(app, client, name))
    return tracked


def step_graph(app: object, name: str | None = None) -> None:
    """None: functions say nothing of each other, so what follows is declared with
    ``kvflow.workflow(graph)`` or learned. Raises `UnsupportedError` as `wrap` does."""
    _check(app)


def unwrap(app: _App) -> _App:
    """The endpoint that `wrap` was given; functions on `app` are tracked no more."""
    if not isinstance(app, TrackedEndpoint):
        return app
    release(app._kvflow)
    original: _App = app._kvflow.original
    return original


def _check(app: object) -> None:
    if not isinstance(app, RuntimeEndpoint):
        raise UnsupportedError(
            f"kvflow.wrap takes an sgl.RuntimeEndpoint (of an sgl.Runtime its "
            f"`endpoint`), not {type(app).__module__}.{type(app).__qualname__}"
        )
