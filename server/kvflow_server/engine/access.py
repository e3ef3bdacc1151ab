"""Who may ask whether this server is KVFlow: everybody, also where keys are needed.

The SDK asks before it knows whether it may tell a server its key, and the answer says
nothing but versions. SGLang's key check exempts health, readiness and metrics by path;
this exempts one path more. KVFlow's other routes need the key.
"""

from __future__ import annotations

import secrets
from typing import Any

from sglang.srt.runtime_context import get_memory, get_serving
from sglang.srt.utils.auth import AuthDecision

from kvflow_sdk.wire import CAPABILITIES_PATH

from .gate import harmless
from .seams import BACKEND

__all__ = ["after_auth", "has_admin_key", "is_active"]


def is_active() -> bool:
    """Whether the server of this HTTP process was started with KVFlow's cache."""
    return bool(get_memory().radix_cache_backend == BACKEND)


def has_admin_key(authorization: str | None) -> bool:
    """Whether a request's Authorization header holds the key of ``--admin-api-key``."""
    key = get_serving().admin_api_key
    kind, _, given = (authorization or "").partition(" ")
    return bool(key) and (
        kind.lower() == "bearer"
        and secrets.compare_digest(given.encode(), str(key).encode())
    )


@harmless
def after_auth(
    decision: AuthDecision, *_args: Any, path: str = "", **_kwargs: Any
) -> AuthDecision:
    """AFTER `decide_request_auth`, which SGLang calls with keywords only."""
    if path == CAPABILITIES_PATH and is_active():
        return AuthDecision(allowed=True)
    return decision
