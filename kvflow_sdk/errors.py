"""Errors of the client SDK.

KVFlowError
├── ConfigError        a setting that cannot be used
├── GraphError         an Agent Step Graph that cannot be built
├── WireError          metadata that does not follow the wire format
└── UnsupportedError   an object that `kvflow.wrap` does not know

None of these is ever raised out of a user's LLM call or graph run: there the
failure is counted and the call goes on as if KVFlow were not installed.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "GraphError",
    "KVFlowError",
    "UnsupportedError",
    "WireError",
]


class KVFlowError(Exception):
    """Base of all errors that KVFlow raises."""


class ConfigError(KVFlowError):
    """A setting has a value that cannot be used."""


class GraphError(KVFlowError):
    """An Agent Step Graph is not well formed; the message names the node."""


class WireError(KVFlowError):
    """Metadata does not follow the wire format.

    `field` is the path of the offending field (``steps['planner']``), `status` the
    HTTP status an out-of-band sender gets: 400, or 413 for something over a cap.
    """

    def __init__(self, message: str, *, field: str, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


class UnsupportedError(KVFlowError, TypeError):
    """`kvflow.wrap` was given an object that no integration understands."""
