"""Recording the LLM calls of a program that knows nothing of it.

`kvflow lint -- python app.py` puts `site_directory` in front of the program's module
path; Python imports the `sitecustomize` in it before the program, and every LLM
request that httpx sends (the openai, anthropic and langchain clients do) is written to
a file on this machine. The requests themselves go out as they are.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = ["RECORD_ENV", "environment", "install"]

RECORD_ENV = "KVFLOW_RECORD_REQUESTS"
"""The file that requests are appended to."""

_PATHS = ("/chat/completions", "/completions", "/generate", "/messages", "/responses")
_MAX_BYTES = 8 << 20
"""Bodies larger than this are not recorded."""
_lock = threading.Lock()


def environment(path: Path) -> dict[str, str]:
    """What a program's environment must have to record into `path`."""
    site = str(Path(__file__).parent / "site")
    before = os.environ.get("PYTHONPATH")
    return {
        RECORD_ENV: str(path),
        "PYTHONPATH": site if not before else os.pathsep.join((site, before)),
    }


def install() -> None:
    """Record this process's httpx requests if the environment asks for it.

    Patches `httpx.Client.send` and `AsyncClient.send` for the life of the process.
    Never raises.
    """
    path = os.environ.get(RECORD_ENV)
    if not path or importlib.util.find_spec("httpx") is None:
        return
    import httpx

    sync, asynchronous = httpx.Client.send, httpx.AsyncClient.send

    def send(self: Any, request: httpx.Request, **options: Any) -> Any:
        _record(path, request)
        return sync(self, request, **options)

    async def async_send(self: Any, request: httpx.Request, **options: Any) -> Any:
        _record(path, request)
        return await asynchronous(self, request, **options)

    httpx.Client.send = send  # type: ignore[method-assign]
    httpx.AsyncClient.send = async_send  # type: ignore[method-assign]


def chain(site: str) -> None:
    """Run the `sitecustomize` that ours stands in front of, if there is one."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != site]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _record(path: str, request: Any) -> None:
    try:
        if request.method != "POST" or not request.url.path.endswith(_PATHS):
            return
        content = request.content
        if len(content) > _MAX_BYTES:
            return
        headers = {
            k: v for k, v in request.headers.items() if k.startswith("x-request")
        }
        line = json.dumps({"headers": headers, "body": json.loads(content)})
        with _lock, open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except Exception:
        # The program's call matters, its record does not.
        return
