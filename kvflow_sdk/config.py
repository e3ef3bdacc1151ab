"""Settings of the client SDK.

Precedence: what the code passes, then the environment, then the default. Every
setting has one variable, `KVFLOW_` and its name in capitals; `Config` is the table.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from .errors import ConfigError

__all__ = ["Config", "is_openai", "origin_of", "server_root"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How one client talks to its servers. Raises `ConfigError` for a bad value."""

    server: str | None = None
    """Base URL of a KVFlow server, with or without ``/v1``. KVFLOW_SERVER."""
    client_name: str | None = None
    """Readable beginning of the client id. KVFLOW_CLIENT_NAME."""
    disable: bool = False
    """Send nothing at all. KVFLOW_DISABLE."""
    api_key: str | None = field(default=None, repr=False)
    """Bearer token for the step stream of `server`. KVFLOW_API_KEY."""
    timeout: float = 2.0
    """Seconds that one background request may take. KVFLOW_TIMEOUT."""
    max_backoff: float = 30.0
    """Longest pause, in seconds, before a failing server is tried again.
    KVFLOW_MAX_BACKOFF."""
    probe_ttl: float = 300.0
    """Seconds that the answer to "is this KVFlow?" holds. KVFLOW_PROBE_TTL."""
    flush: float = 0.5
    """Seconds that the end of the process may wait for the last snapshots.
    KVFLOW_FLUSH."""
    max_runs: int = 256
    """Runs whose newest snapshot is kept for an unreachable server. KVFLOW_MAX_RUNS."""
    learn: bool = True
    """Learn from what happens who follows whom (`likelihood`). KVFLOW_LEARN."""
    learned: str | None = None
    """File that what is learned is read from and written to. KVFLOW_LEARNED."""

    drift_warnings: bool = True
    """Warn once of an agent whose prompts change in the midst of what stays the same.
    KVFLOW_DRIFT_WARNINGS."""

    def __post_init__(self) -> None:
        if self.server is not None:
            origin_of(self.server)
        name = self.client_name
        if name is not None and not (0 < len(name) <= 64 and name.isprintable()):
            raise ConfigError(
                f"client_name: 1 to 64 printable characters, not {name!r}"
            )
        for setting in ("timeout", "max_backoff", "probe_ttl", "flush"):
            value = getattr(self, setting)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"{setting}: a number of seconds, 0 or more, not {value!r}"
                )
        if self.max_runs < 1:
            raise ConfigError(f"max_runs: 1 or more, not {self.max_runs!r}")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Config:
        """Settings from the code (those that are not None), else the environment."""
        environ = os.environ if environ is None else environ
        known = {item.name: str(item.type) for item in fields(cls)}
        if unknown := settings.keys() - known:
            raise ConfigError(
                f"{', '.join(sorted(unknown))}: no such setting; "
                f"there are {', '.join(known)}"
            )
        values = {name: value for name, value in settings.items() if value is not None}
        for name, kind in known.items():
            text = environ.get(f"KVFLOW_{name.upper()}")
            if name not in values and text is not None:
                values[name] = _read(f"KVFLOW_{name.upper()}", text, kind)
        return cls(**{name: value for name, value in values.items() if value != ""})


def _read(variable: str, text: str, kind: str) -> object:
    if kind == "bool" and text:
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"{variable}: 1 or 0, not {text!r}")
        return text.lower() in _TRUE
    if kind in ("float", "int") and text:
        try:
            return float(text) if kind == "float" else int(text)
        except ValueError:
            raise ConfigError(f"{variable}: a number, not {text!r}") from None
    return text


@functools.lru_cache(maxsize=256)
def origin_of(url: str) -> str:
    """``scheme://host:port`` of `url`, normalised. Raises `ConfigError`."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        host = parts.hostname
    except (ValueError, KeyError):
        host, port = None, 0
    if not host:
        raise ConfigError(f"{url!r}: not a URL such as http://localhost:30000/v1")
    return (
        f"{parts.scheme}://[{host}]:{port}"
        if ":" in host
        else (f"{parts.scheme}://{host}:{port}")
    )


def is_openai(origin: str) -> bool:
    """Whether `origin` is the OpenAI company's: where calls go when nobody named a
    server. No KVFlow there, and no need to ask."""
    host = origin.partition("://")[2].rpartition(":")[0]
    return host == "api.openai.com" or host.endswith(".api.openai.com")


@functools.lru_cache(maxsize=256)
def server_root(url: str) -> str:
    """`url` without query, trailing slash and ``/v1``: what routes hang below."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"
