"""SGLang's plugin entry point: inert unless KVFlow is chosen.

``register`` runs in every SGLang process of the environment, in the main one before
the command line is parsed. It makes the backend known by name and puts the hooks of
this process's role in place; every hook returns at once unless the server's cache is
KVFlow's. SGLang swallows what goes wrong here, so the cache factory checks the result
(`engine.seams`).
"""

from __future__ import annotations

import os
import sys

__all__ = ["register"]


def register() -> None:
    """Called by SGLang's `load_plugins()`, once per process."""
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        register_tree_core_backend,
    )

    from kvflow_server.engine.seams import BACKEND, HTTP_READY, Role

    if get_radix_cache_factory(BACKEND) is not None:
        return
    register_radix_cache_backend(BACKEND, _create_cache)
    register_tree_core_backend(BACKEND, _create_tree_core)
    if "sglang.srt.managers.scheduler" in sys.modules:
        _register_hooks(Role.SCHEDULER)
    if _serves_http():
        _register_hooks(Role.HTTP)
        _extend_http_server()
        os.environ[HTTP_READY] = "1"


def _serves_http() -> bool:
    """Whether this process is, or is about to become, the HTTP server of a KVFlow.

    Importing the HTTP server costs seconds, so only where KVFlow is asked for.
    """
    from kvflow_server.engine.seams import BACKEND, HTTP_READY

    flag = "--radix-cache-backend"
    asked = f"{flag}={BACKEND}" in sys.argv or any(
        pair == (flag, BACKEND) for pair in zip(sys.argv, sys.argv[1:], strict=False)
    )
    in_child = HTTP_READY in os.environ
    return not in_child and (
        asked or "sglang.srt.entrypoints.http_server" in sys.modules
    )


def _register_hooks(role: object) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kvflow_server.engine.messages import admit_types
    from kvflow_server.engine.seams import HOOKS

    admit_types()
    for hook in HOOKS:
        if hook.role is role:
            HookRegistry.register(hook.target, hook.load(), HookType(hook.when))


def _extend_http_server() -> None:
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS

    from kvflow_server.edge.routes import add_routes
    from kvflow_server.engine.messages import KVFlowStateReqOutput

    _COMMUNICATOR_SPECS.append(("kvflow_state", KVFlowStateReqOutput))
    add_routes(app)


def _create_cache(ctx: object) -> object:
    from kvflow_server.engine.factory import create_cache

    return create_cache(ctx)


def _create_tree_core(params: object, components: object) -> object:
    from kvflow_server.engine.factory import create_tree_core

    return create_tree_core(params, components)
