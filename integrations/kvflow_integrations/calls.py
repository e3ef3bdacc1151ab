"""Tags the LLM calls that an agent makes, whichever OpenAI client they go through.

`langchain_openai`, `autogen_ext` and most others end in `openai.OpenAI` or
`openai.AsyncOpenAI`, so their `_prepare_options` is patched: it is called once per
attempt, knows the base URL, and is the same for plain, streaming, raw and structured
calls in openai 2.8 and 3.x.
Only calls inside a tracked agent that go to a server known as KVFlow are touched, and
only by one header. Clients of `kvflow_sdk.openai` tag themselves.

All integrations share the one patch: each of its own would, undone out of order, bring
back another's.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kvflow_integrations import templates
from kvflow_integrations.adapter import Patches, SharedPatches
from kvflow_sdk.client import call_headers, tag_request
from kvflow_sdk.context import current

__all__ = ["patches"]


def _install(patches: Patches) -> None:
    """Patch the openai client classes, if there are any to patch."""
    try:
        import openai

        from kvflow_sdk import openai as own
    except ImportError:
        return
    themselves = (own.OpenAI, own.AsyncOpenAI)
    patches.set(
        openai.OpenAI,
        "_prepare_options",
        _tagging(openai.OpenAI._prepare_options, themselves),
    )
    patches.set(
        openai.AsyncOpenAI,
        "_prepare_options",
        _tagging_async(openai.AsyncOpenAI._prepare_options, themselves),
    )


def _tagging(
    prepare: Callable[[Any, Any], Any], themselves: tuple[type, ...]
) -> Callable[[Any, Any], Any]:
    @functools.wraps(prepare)
    def tagging(client: Any, options: Any) -> Any:
        return _tag(client, prepare(client, options), themselves)

    return tagging


def _tagging_async(
    prepare: Callable[[Any, Any], Awaitable[Any]], themselves: tuple[type, ...]
) -> Callable[[Any, Any], Awaitable[Any]]:
    @functools.wraps(prepare)
    async def tagging(client: Any, options: Any) -> Any:
        return _tag(client, await prepare(client, options), themselves)

    return tagging


def _tag(client: Any, options: Any, themselves: tuple[type, ...]) -> Any:
    if isinstance(client, themselves):
        return options
    return tag_request(options, lambda: _headers(client, options.json_data))


def _headers(client: Any, body: Any) -> Mapping[str, str]:
    call = current()
    fixed = None
    if call is not None and call.fixed is None:
        fixed = templates.mark_of(call.agent, body)
    return call_headers(str(client.base_url), fixed=fixed, body=body)


patches = SharedPatches(_install)
"""In place while anything is wrapped."""
