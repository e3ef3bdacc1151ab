"""Lets KVFlow into the processes that take requests, or refuses to launch the server.

SGLang only logs when a hook cannot be applied. So everything is put in place and looked
at in the one moment when all plugins are loaded, the flags are read and no other
process has been started (`seams.LAUNCH`); what is in the way ends the launch, with all
reasons at once. The cache factory looks again, in each scheduler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from kvflow_server.engine.config import settings_problems
from kvflow_server.engine.messages import KVFlowStateReqOutput
from kvflow_server.engine.seams import (
    ACTIVATED,
    Role,
    activation_error,
    check_seams,
    register_hooks,
    sglang_version,
    unapplied_hooks,
)
from kvflow_server.engine.support import refusals

__all__ = ["let_in", "prepare_launch"]

HTTP_SERVER = "sglang.srt.entrypoints.http_server"
APP_PATH = "SGLANG_HTTP_SERVER_APP_PATH"
"""SGLang's variable for the app that further HTTP workers run."""
WORKER_APP = "kvflow_server.edge.worker:app"
RUST_SERVER = "SGLANG_RUST_SERVER"


def prepare_launch(args: Any) -> None:
    """Called in the launching process with the `ServerArgs` of a KVFlow server.

    Raises `KVFlowActivationError` naming everything that stands in the way.
    """
    hicache = bool(args.enable_hierarchical_cache)
    problems = refusals(args) + _environment_refusals(args)
    problems += settings_problems(hierarchical_cache=hicache)
    if not problems:
        # An offline `Engine` has no HTTP server.
        serves = HTTP_SERVER in sys.modules
        problems = let_in([Role.TOKENIZER, Role.HTTP] if serves else [Role.TOKENIZER])
    if problems:
        raise activation_error(problems)
    if (getattr(args, "tokenizer_worker_num", 1) or 1) > 1:
        os.environ[APP_PATH] = WORKER_APP
    os.environ[ACTIVATED] = "1"


def let_in(roles: Sequence[Role]) -> list[str]:
    """Put the hooks and routes of `roles` into this process; returns what is wrong."""
    problems = [f"SGLang {sglang_version()}: {text}" for text in check_seams(roles)]
    if problems:
        return problems
    from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS
    from sglang.srt.plugins.hook_registry import HookRegistry

    for role in roles:
        register_hooks(role)
    HookRegistry.apply_hooks()
    spec = ("kvflow_state", KVFlowStateReqOutput)
    if spec not in _COMMUNICATOR_SPECS:
        _COMMUNICATOR_SPECS.append(spec)
    if Role.HTTP in roles:
        _add_routes()
    return [
        f"the hook on {target} was not applied (see the log above)"
        for role in roles
        for target in unapplied_hooks(role)
    ]


def _add_routes() -> None:
    from sglang.srt.entrypoints.http_server import app

    from .routes import add_routes

    add_routes(app)


def _environment_refusals(args: Any) -> list[str]:
    found = []
    if os.environ.get(RUST_SERVER, "").lower() in {"1", "true", "yes"}:
        found.append(f"{RUST_SERVER}: its HTTP server is not Python; unset it")
    given = os.environ.get(APP_PATH, WORKER_APP)
    several = (getattr(args, "tokenizer_worker_num", 1) or 1) > 1
    if several and given != WORKER_APP:
        found.append(
            f"{APP_PATH}={given}: KVFlow's routes must be in the app that the tokenizer "
            "workers run; unset it, or use one worker"
        )
    return found
