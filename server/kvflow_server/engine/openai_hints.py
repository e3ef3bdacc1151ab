"""KVFlow's header on the OpenAI endpoints becomes SGLang's ``kv_hints``.

Hooks that run AFTER SGLang's own conversion. They must never raise: a header that
cannot be used is dropped, counted and logged once, and the call is served as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import (
    HEADER,
    FixedMark,
    StepUpdate,
    from_header,
    to_envelope,
)

from .boundary import BoundaryCache, chat_boundary, default_mark, text_boundary
from .gate import check_in_band, dropped, harmless, is_ours

__all__ = [
    "after_chat",
    "after_completion",
    "after_tokenize",
    "chat_prompt",
    "text_prompt",
]

_boundaries = BoundaryCache()


@harmless
def after_chat(
    result: Any, serving: Any, request: Any, raw_request: Any = None
) -> None:
    """AFTER `OpenAIServingChat._convert_to_internal_request`."""
    update = _update_of(raw_request)
    if update is None:
        return
    adapted, processed = result
    mark = update.fixed or default_mark(processed)
    tokens = None
    if mark is not None:
        tokens = _chat_tokens(serving, adapted, processed, mark)
        if tokens is None:
            dropped.record("fixed", f"fixed: {mark} points past the end of the prompt")
    adapted.kv_hints = _hints(update, tokens, assumed=update.fixed is None)


def chat_prompt(
    serving: Any, adapted: Any, processed: Any, mark: FixedMark | None
) -> tuple[Any, int | None]:
    """The token ids of a chat request that SGLang has converted, and how many of them
    are fixed; None if nothing is, or the mark points nowhere."""
    mark = mark or default_mark(processed)
    if mark is None:
        return (), None
    ids = _prompt_ids(serving, adapted)
    return ids, _chat_tokens(serving, adapted, processed, mark)


def text_prompt(
    manager: Any, text: str, mark: FixedMark | None
) -> tuple[Any, int | None]:
    """The token ids of a plain prompt, and how many of them are fixed."""
    ids = manager.tokenizer.encode(text)
    if mark is None:
        return ids, len(ids)
    if mark.chars is None:
        return ids, mark.tokens
    return ids, text_boundary(manager.tokenizer, text, ids, mark.chars, _boundaries)


def _chat_tokens(
    serving: Any, adapted: Any, processed: Any, mark: FixedMark
) -> int | None:
    return chat_boundary(
        serving, processed, lambda: _prompt_ids(serving, adapted), mark, _boundaries
    )


@harmless
def after_completion(
    result: Any, _serving: Any, _request: Any, raw_request: Any = None
) -> None:
    """AFTER `OpenAIServingCompletion._convert_to_internal_request`. A mark is turned
    into tokens by `after_tokenize`, as on ``/generate``."""
    update = _update_of(raw_request)
    if update is not None:
        result[0].kv_hints = to_envelope([update])


@harmless
def after_tokenize(
    tokenized: Any, manager: Any, _obj: Any, input_text: Any, *_args: Any, **_kw: Any
) -> None:
    """AFTER `TokenizerManager._create_tokenized_object`: what KVFlow cannot use goes no
    further, and a mark in characters on a plain prompt becomes a count of tokens."""
    hints = getattr(tokenized, "kv_hints", None)
    if hints is None or not any(map(is_ours, hints.actions)):
        return
    try:
        check_in_band(hints)
    except WireError:
        others = [action for action in hints.actions if not is_ours(action)]
        tokenized.kv_hints = msgspec.structs.replace(hints, actions=others)
        raise
    # The prompts of one call share its envelope, so it is replaced, never changed.
    actions = [
        _with_tokens(action, tokenized, manager, input_text)
        if is_ours(action)
        else action
        for action in hints.actions
    ]
    tokenized.kv_hints = msgspec.structs.replace(hints, actions=actions)


def _with_tokens(action: Any, tokenized: Any, manager: Any, input_text: Any) -> Any:
    fixed = action.payload.get("fixed") or {}
    chars = fixed.get("chars")
    if fixed.get("message") != 0 or chars is None:
        return action
    tokens = None
    if isinstance(input_text, str):
        tokens = text_boundary(
            manager.tokenizer,
            input_text,
            tokenized.input_ids,
            chars,
            _boundaries,
        )
    payload = {**action.payload, "fixed": {"tokens": tokens}}
    if tokens is None:
        dropped.record("fixed", f"fixed: character {chars} is past the prompt")
        del payload["fixed"]
    return msgspec.structs.replace(action, payload=payload)


def _prompt_ids(serving: Any, adapted: Any) -> Any:
    if adapted.input_ids is not None:
        return adapted.input_ids
    return serving.tokenizer_manager.tokenizer.encode(adapted.text)


def _update_of(raw_request: Any) -> StepUpdate | None:
    value = raw_request.headers.get(HEADER) if raw_request is not None else None
    if value is None:
        return None
    updates = from_header(value)
    return updates[0] if updates else None


def _hints(update: StepUpdate, tokens: int | None, *, assumed: bool) -> Any:
    fixed = None if tokens is None else FixedMark(tokens=tokens, assumed=assumed)
    update = msgspec.structs.replace(update, fixed=fixed)
    return decode_kv_hints_envelope(to_envelope([update]))
