"""KVFlow client SDK: tell the LLM server which agent runs next.

::

    import kvflow_sdk as kvflow

    app = kvflow.wrap(graph.compile())  # a LangGraph graph, otherwise unchanged


    @kvflow.agent("planner")  # a plain Python function
    def plan(question): ...


    client = kvflow.OpenAI(base_url="http://localhost:30000/v1")
"""

from __future__ import annotations

import importlib
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
from .prewarm import AgentPrompt
from .prompt import Prompt, split
from .run import Run
from .wire import FixedMark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .drift.watch import DriftWarning
    from .openai import AsyncOpenAI, OpenAI

__all__ = [
    "START",
    "AgentPrompt",
    "AgentStepGraph",
    "AsyncOpenAI",
    "Call",
    "Client",
    "Config",
    "ConfigError",
    "DriftWarning",
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
    "register",
    "split",
    "step",
    "workflow",
    "wrap",
]

_T = TypeVar("_T")


_INTEGRATIONS = {
    "langgraph": "langgraph",
    "autogen_agentchat": "autogen",
    "autogen": "ag2",
    "ag2": "ag2_network",
    "sglang": "sglang_lang",
    "agentuniverse": "agentuniverse",
    "agents": "openai_agents",
}
"""By a framework's package: the module of `kvflow_integrations` that understands it."""


def wrap(
    app: _T,
    *,
    client: Client | None = None,
    name: str | None = None,
    targets: Mapping[str, Iterable[str]] | None = None,
) -> _T:
    """`app`, a program of an agent framework, with KVFlow attached to its agents.

    A compiled LangGraph graph, an AutoGen team or agent, an agent of the OpenAI Agents
    SDK, an endpoint of SGLang's front-end language, a PEER agent of agentUniverse, the
    manager of a classic ag2 group chat, the hub of an ag2 1.x network.
    `name` prefixes its agents, for programs that wrap several. `targets`, for LangGraph
    only: where nodes lead that do not declare it, as {"node": ["this", "that"]}.
    Raises `UnsupportedError` for an object that no integration understands.
    """
    more = {} if targets is None else {"targets": targets}
    wrapped: _T = _integration(app).wrap(app, client=client, name=name, **more)
    return wrapped


def register(
    app: object,
    prompts: Mapping[str, AgentPrompt],
    *,
    client: Client | None = None,
    name: str | None = None,
) -> None:
    """Let the server compute these agents' fixed prompts before they run.

    `app` is what `wrap` takes, or an `AgentStepGraph`, or None: then agents run in the
    order of `prompts`. By agent: its system message, a `kvflow.split` prompt, its
    messages, or the whole request of a call (tools and all), as it will be sent. The
    texts go to the servers that the client knows, in the background, and to nobody
    else; a server does something with them only if it was started with
    ``--kvflow-prewarm``, and only while it has nothing else to do. Raises `ConfigError`
    for a prompt that is none of these, `UnsupportedError` as `wrap`.
    """
    if app is None or isinstance(app, AgentStepGraph):
        graph = app
    else:
        graph = _integration(app).step_graph(app, name)
    from .client import usable_client

    usable = usable_client(client)
    if usable is not None:
        usable.prewarm(graph, prompts)


def _integration(app: object) -> Any:
    """The module that understands `app`. Raises `UnsupportedError`."""
    # By name, so that no framework is imported that the program does not use.
    modules = {kind.__module__.partition(".")[0] for kind in type(app).__mro__}
    for package, module in _INTEGRATIONS.items():
        if package in modules and package in sys.modules:
            try:
                return importlib.import_module(f"kvflow_integrations.{module}")
            except ImportError:
                continue  # a package of the user's own, of the same name
    raise UnsupportedError(
        f"kvflow.wrap takes a compiled LangGraph graph (graph.compile()), an AutoGen "
        f"team, an agent of the OpenAI Agents SDK, an SGLang endpoint, a PEER agent of "
        f"agentUniverse, an ag2 group chat's manager or an ag2 network's Hub, not "
        f"{type(app).__module__}.{type(app).__qualname__}; for plain functions use "
        f"@kvflow.agent(name), for OpenAI clients kvflow.OpenAI or kvflow.AsyncOpenAI"
    )


def __getattr__(name: str) -> Any:
    if name in ("OpenAI", "AsyncOpenAI"):
        from . import openai

        return getattr(openai, name)
    if name == "DriftWarning":
        from .drift.watch import DriftWarning

        return DriftWarning
    if name == "__version__":
        from importlib.metadata import version

        return version("kvflow")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
