"""`OpenAI` and `AsyncOpenAI` that say which agent is calling.

Drop-in subclasses: every call made inside an agent carries one header more, and
nothing else changes. `_prepare_options` is where the client lets subclasses touch a
request; openai 2.8 and 3.x call it once per attempt, for plain, streaming, raw and
`with_options` calls alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai

from .client import call_headers, tag_request, usable_client

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

__all__ = ["AsyncOpenAI", "OpenAI"]


class OpenAI(openai.OpenAI):
    """`openai.OpenAI` for a KVFlow server; a plain client with any other."""

    if not TYPE_CHECKING:  # the signature stays that of the base class

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            _introduce(self)

    def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        return _tag(self, super()._prepare_options(options))


class AsyncOpenAI(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI` for a KVFlow server; a plain client with any other."""

    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            _introduce(self)

    async def _prepare_options(
        self, options: FinalRequestOptions
    ) -> FinalRequestOptions:
        return _tag(self, await super()._prepare_options(options))


def _introduce(client: OpenAI | AsyncOpenAI) -> None:
    """Whoever points a KVFlow class at a server says that it is KVFlow."""
    ours = usable_client()
    if ours is None:
        return
    try:
        ours.configure(str(client.base_url), api_key=_key(client))
    except Exception as error:
        # openai accepts any base URL and fails in the call; so does this.
        ours.counters.error("base URL of a client", error)


def _tag(
    client: OpenAI | AsyncOpenAI, options: FinalRequestOptions
) -> FinalRequestOptions:
    tagged: FinalRequestOptions = tag_request(
        options,
        lambda: call_headers(
            _base_url(client),
            configured=True,
            api_key=_key(client),
            body=options.json_data,
        ),
    )
    return tagged


def _base_url(client: OpenAI | AsyncOpenAI) -> str:
    """As a text, made once; another object when the user sets another one.

    What stands behind `base_url` is enough to see that it is the same: the property
    itself imports a module at each look (openai 3).
    """
    attributes = vars(client)
    known = attributes.get("_kvflow_base_url")
    if known is None or known[0] is not attributes.get("_base_url", known):
        url = client.base_url
        known = attributes.get("_base_url", url), str(url)
        attributes["_kvflow_base_url"] = known
    text: str = known[1]
    return text


def _key(client: OpenAI | AsyncOpenAI) -> str | None:
    key = client.api_key
    return key if isinstance(key, str) and key else None
