"""HTTP for the background thread: few requests, small ones, and little of the processor.

What that thread computes, the application waits for: there is one interpreter lock. A
request through `http.client` takes a quarter of what one through httpx does. Proxies
and certificates are found where httpx, and with it the openai client, finds them.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, urlsplit

__all__ = ["FAILURES", "MAX_ANSWER", "Channels"]

FAILURES: Final = (OSError, HTTPException, ValueError)
"""What a request raises when there is no answer, or none that can be read."""
MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read."""


class Channels:
    """One connection to each server, kept open. For one thread."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._open: dict[tuple[str, str], _Channel] = {}

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Status and, up to `MAX_ANSWER`, body of the answer. Raises `FAILURES`."""
        parts = urlsplit(url)
        server = (parts.scheme, parts.netloc)
        channel = self._open.get(server)
        if channel is not None:
            try:
                return channel.request(method, parts, body, headers or {})
            except (ConnectionError, HTTPException):
                # The server has closed it meanwhile, as it may; a new one will tell.
                self._drop(server)
            except BaseException:
                self._drop(server)
                raise
        self._open[server] = channel = _Channel(parts, self._timeout)
        try:
            return channel.request(method, parts, body, headers or {})
        except BaseException:
            self._drop(server)
            raise

    def close(self) -> None:
        for server in list(self._open):
            self._drop(server)

    def _drop(self, server: tuple[str, str]) -> None:
        self._open.pop(server).connection.close()


class _Channel:
    """A connection, straight or through the proxy that the environment names."""

    def __init__(self, parts: SplitResult, timeout: float) -> None:
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        proxy = _proxy(parts)
        self._absolute = proxy is not None and not secure
        at = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        self.connection = (
            HTTPSConnection(*at, timeout=timeout, context=_certificates())
            if secure
            else HTTPConnection(*at, timeout=timeout)
        )
        if proxy is not None and secure:
            self.connection.set_tunnel(host, port)

    def request(
        self,
        method: str,
        parts: SplitResult,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        target = parts.geturl() if self._absolute else parts.path or "/"
        self.connection.request(method, target, body, dict(headers))
        answer = self.connection.getresponse()
        text = answer.read(MAX_ANSWER)
        if not answer.isclosed():
            # Longer than anybody reads; the rest is in the way of the next answer.
            self.connection.close()
        return answer.status, text


def _proxy(parts: SplitResult) -> SplitResult | None:
    proxies = urllib.request.getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http":
        raise ValueError(f"a proxy of the scheme {proxy.scheme!r} is not supported")
    return proxy


def _certificates() -> ssl.SSLContext:
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if named is None and importlib.util.find_spec("certifi") is not None:
        import certifi

        return ssl.create_default_context(cafile=certifi.where())
    return ssl.create_default_context()
