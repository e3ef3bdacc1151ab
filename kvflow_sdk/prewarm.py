"""Prompts that a server may compute before their agents run.

The body of ``POST /kvflow/v1/prewarm`` is one `PrewarmRequest`: the request of an
agent's call as it would be sent, so that the server renders and tokenizes it as it will
the real one, and where its fixed part ends. It is sent for what was given to
`kvflow.register`, and for nothing else: this is the only way by which the text of a
prompt leaves the process besides the LLM call itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from .checks import convert
from .errors import ConfigError, WireError
from .prompt import Prompt
from .wire import FixedMark, check_fixed, check_name, check_steps

__all__ = [
    "MAX_PREWARM_BYTES",
    "PREWARM_PATH",
    "AgentPrompt",
    "PrewarmRequest",
    "parse_prewarm",
    "prewarm_requests",
]

PREWARM_PATH = "/kvflow/v1/prewarm"
MAX_PREWARM_BYTES = 1 << 20

AgentPrompt: TypeAlias = str | Prompt | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A system message; a split prompt; messages; or a whole request, with tools and all,
and with ``fixed`` (a `FixedMark`) if it does not end with the system messages."""

_KINDS = ("messages", "text", "input_ids")
_ANY_USER = {"role": "user", "content": "."}
"""Stands behind a system message: templates want somebody to speak."""


class PrewarmRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent's prompt."""

    client: str
    agent: str
    steps: dict[str, int]
    """Steps of the client's agents at the start of a run: who comes first."""
    request: dict[str, Any]
    """The body of a chat completion (``messages``, ``tools``, …) or of ``/generate``
    (``text`` or ``input_ids``)."""
    fixed: FixedMark | None = None
    """None: the leading system messages, or all of a plain prompt."""


def parse_prewarm(obj: object) -> PrewarmRequest:
    """A validated request. Raises `WireError` naming the field."""
    asked = convert(obj, PrewarmRequest)
    check_name(asked.client, "client")
    check_name(asked.agent, "agent")
    check_steps(asked.steps)
    if asked.fixed is not None:
        check_fixed(asked.fixed)
    if sum(kind in asked.request for kind in _KINDS) != 1:
        raise WireError(
            "request: holds exactly one of messages, text and input_ids",
            field="request",
        )
    return asked


def prewarm_requests(
    client: str, steps: Mapping[str, int], prompts: Mapping[str, AgentPrompt]
) -> Iterable[PrewarmRequest]:
    """One request for each of `prompts`. Raises `ConfigError` naming the agent."""
    for agent, prompt in prompts.items():
        request, fixed = _request_of(agent, prompt)
        yield PrewarmRequest(
            client=client, agent=agent, steps=dict(steps), request=request, fixed=fixed
        )


def _request_of(
    agent: str, prompt: AgentPrompt
) -> tuple[dict[str, Any], FixedMark | None]:
    if isinstance(prompt, str):
        prompt = [{"role": "system", "content": prompt}]
    if isinstance(prompt, Prompt):
        return {"messages": prompt.messages}, prompt.fixed
    if not isinstance(prompt, Mapping):
        prompt = {"messages": prompt}
    request = {name: value for name, value in prompt.items() if name != "fixed"}
    fixed = prompt.get("fixed")
    if fixed is not None and not isinstance(fixed, FixedMark):
        raise ConfigError(f"prompts[{agent!r}]: `fixed` is a kvflow.FixedMark")
    if sum(kind in request for kind in _KINDS) != 1:
        raise ConfigError(
            f"prompts[{agent!r}]: a text, a kvflow.Prompt, messages, or a request with "
            "messages, text or input_ids"
        )
    if "messages" in request:
        messages = [dict(message) for message in request["messages"]]
        if not messages:
            raise ConfigError(f"prompts[{agent!r}]: no messages")
        if messages[-1].get("role") in ("system", "developer"):
            messages.append(dict(_ANY_USER))
        request["messages"] = messages
    return request, fixed
