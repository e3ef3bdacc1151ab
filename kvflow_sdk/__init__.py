"""KVFlow client SDK: tell the LLM server which agent runs next.

::

    import kvflow_sdk as kvflow

    app = kvflow.wrap(graph.compile())  # a LangGraph graph, otherwise unchanged


    @kvflow.agent("planner")  # a plain Python function
    def plan(question): ...


    client = kvflow.OpenAI(base_url="http://localhost:30000/v1")
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from .agent import agent, step, workflow
from .client import Client, default_client
from .config import Config
from .context import Call, bind, current, fixed
from .errors import (
    ConfigError,
    GraphError,
    KVFlowError,
    UnsupportedError,
    WireError,
)
from .graph import START, AgentStepGraph, GraphBuilder
from .prompt import Prompt, split
from .run import Run
from .wire import FixedMark

if TYPE_CHECKING:
    from .openai import AsyncOpenAI, OpenAI

__all__ = [
    "START",
    "AgentStepGraph",
    "AsyncOpenAI",
    "Call",
    "Client",
    "Config",
    "ConfigError",
    "FixedMark",
    "GraphBuilder",
    "GraphError",
    "KVFlowError",
    "OpenAI",
    "Prompt",
    "Run",
    "UnsupportedError",
    "WireError",
    "agent",
    "bind",
    "current",
    "default_client",
    "fixed",
    "split",
    "step",
    "workflow",
    "wrap",
]

_T = TypeVar("_T")


def wrap(app: _T, *, client: Client | None = None, name: str | None = None) -> _T:
    """`app`, a compiled LangGraph graph, with KVFlow attached to its nodes.

    `name` prefixes its agents, for programs that wrap several graphs. Raises
    `UnsupportedError` for an object that no integration understands.
    """
    # By name, so that no framework is imported that the program does not use.
    modules = {kind.__module__.partition(".")[0] for kind in type(app).__mro__}
    if "langgraph" in modules and "langgraph" in sys.modules:
        from kvflow_integrations import langgraph

        wrapped: _T = langgraph.wrap(app, client=client, name=name)
        return wrapped
    if "sglang" in modules and "sglang" in sys.modules:
        from kvflow_integrations import sglang_lang

        endpoint: _T = sglang_lang.wrap(app, client=client, name=name)
        return endpoint
    raise UnsupportedError(
        f"kvflow.wrap takes a compiled LangGraph graph (graph.compile()), not "
        f"{type(app).__module__}.{type(app).__qualname__}; for plain functions use "
        f"@kvflow.agent(name), for OpenAI clients kvflow.OpenAI or kvflow.AsyncOpenAI"
    )


def __getattr__(name: str) -> Any:
    if name in ("OpenAI", "AsyncOpenAI"):
        from . import openai

        return getattr(openai, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("kvflow")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
