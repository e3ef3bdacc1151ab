"""What a client asks to be computed ahead, as the tokens of the call to come."""

from __future__ import annotations

from array import array
from typing import Any

from kvflow_sdk.errors import WireError
from kvflow_sdk.prewarm import PrewarmRequest
from kvflow_server.engine.messages import KVFlowPrewarmReq
from kvflow_server.engine.openai_hints import chat_prompt, text_prompt

__all__ = ["to_message"]


def to_message(serving: Any, manager: Any, asked: PrewarmRequest) -> KVFlowPrewarmReq:
    """Rendered and tokenized by `serving`, SGLang's own handler of chat completions,
    and by `manager`, its `TokenizerManager`; cut where the fixed part ends.

    Raises `WireError` where that is nowhere, and for what cannot be computed ahead.
    """
    extra_key, cache_salt = (asked.request.get(k) for k in ("extra_key", "cache_salt"))
    if asked.request.get("lora_path"):
        raise WireError("request.lora_path: not for prompts ahead", field="request")
    if "messages" in asked.request:
        adapted, ids, tokens = _chat(serving, asked)
        if adapted.lora_path or adapted.image_data or adapted.audio_data:
            raise WireError(
                "request: prompts with adapters or media are not computed ahead",
                field="request",
            )
        extra_key, cache_salt = adapted.extra_key, adapted.cache_salt
    else:
        ids, tokens = _plain(manager, asked)
    if not tokens or tokens > len(ids):
        raise WireError(
            "fixed: nothing of this prompt is known to be fixed; mark it, or begin with "
            "a system message",
            field="fixed",
        )
    return KVFlowPrewarmReq(
        client=asked.client,
        agent=asked.agent,
        steps=asked.steps,
        tokens=array("q", ids[:tokens]).tobytes(),
        extra_key=extra_key,
        cache_salt=cache_salt,
    )


def _chat(serving: Any, asked: PrewarmRequest) -> tuple[Any, Any, int | None]:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    try:
        request = ChatCompletionRequest(**asked.request)
        adapted, processed = serving._convert_to_internal_request(request)
    except Exception as error:  # the template's own errors, too
        raise WireError(f"request: {error}", field="request") from error
    return adapted, *chat_prompt(serving, adapted, processed, asked.fixed)


def _plain(manager: Any, asked: PrewarmRequest) -> tuple[Any, int | None]:
    text, mark = asked.request.get("text"), asked.fixed
    if text is None:
        ids = asked.request["input_ids"]
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise WireError("request.input_ids: a list of numbers", field="request")
        vocabulary = manager.model_config.vocab_size
        if any(not 0 <= i < vocabulary for i in ids):
            raise WireError(
                f"request.input_ids: below {vocabulary}, 0 or more", field="request"
            )
        return ids, len(ids) if mark is None else mark.tokens
    if not isinstance(text, str) or manager.tokenizer is None:
        raise WireError("request.text: a text, for a tokenizer", field="request")
    return text_prompt(manager, text, mark)
