"""SGLang's plugin entry point: inert unless KVFlow is chosen.

``register`` runs in every SGLang process of the environment. It makes the backend known
by name, in a scheduler it puts the hooks in place, and in the process that launches a
server it waits for the flags to be read (`seams.LAUNCH`): only then is it known whether
KVFlow is chosen. SGLang swallows what goes wrong here, so the launch
(`edge.activation`) and the cache factory check the result.
"""

from __future__ import annotations

import os
import sys
from typing import Any

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
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kvflow_server.emulated.platform import DEVICE_ENV
    from kvflow_server.engine.messages import admit_types
    from kvflow_server.engine.seams import (
        BACKEND,
        LAUNCH,
        ON_IDLE,
        Role,
        register_hooks,
    )

    if get_radix_cache_factory(BACKEND) is not None:
        return
    register_radix_cache_backend(BACKEND, _create_cache)
    register_tree_core_backend(BACKEND, _create_tree_core)
    admit_types()
    if "sglang.srt.managers.scheduler" in sys.modules:
        register_hooks(Role.SCHEDULER)
        if os.environ.get(DEVICE_ENV):
            from kvflow_server.emulated.pace import note_idle

            HookRegistry.register(ON_IDLE, note_idle, HookType.BEFORE)
    HookRegistry.register(LAUNCH, _before_launch)


def _before_launch(_result: object, args: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `ServerArgs.check_server_args`."""
    from kvflow_server.engine.seams import BACKEND

    if args.radix_cache_backend == BACKEND:
        from kvflow_server.edge.activation import prepare_launch

        prepare_launch(args)


def _create_cache(ctx: object) -> object:
    from kvflow_server.engine.factory import create_cache

    return create_cache(ctx)


def _create_tree_core(params: object, components: object) -> object:
    from kvflow_server.engine.factory import create_tree_core

    return create_tree_core(params, components)
