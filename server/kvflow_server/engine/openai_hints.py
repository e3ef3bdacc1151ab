"""KVFlow's header on the OpenAI endpoints becomes SGLang's ``kv_hints``.

Hooks that run AFTER SGLang's own conversion. They must never raise: a header that
cannot be used is dropped, counted and logged once, and the call is served as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import (
    ACTION_TYPE,
    HEADER,
    FixedMark,
    StepUpdate,
    from_header,
    to_envelope,
)

from .boundary import BoundaryCache, chat_boundary, default_mark, text_boundary
from .counters import DroppedMetadata

__all__ = ["after_chat", "after_completion", "after_tokenize", "dropped"]

logger = logging.getLogger(__name__)

dropped = DroppedMetadata()
"""In-band metadata that this HTTP process could not use."""

_boundaries = BoundaryCache()

_F = TypeVar("_F", bound=Callable[..., None])


def _harmless(hook: _F) -> _F:
    @wraps(hook)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except WireError as error:
            dropped.record(error.field.partition("[")[0], str(error))
        except Exception as error:
            dropped.record("internal", f"{type(error).__name__}: {error}")
            logger.debug("KVFlow hook failed", exc_info=True)

    return guarded  # type: ignore[return-value]


@_harmless
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
        ids = adapted.input_ids
        if ids is None:
            ids = serving.tokenizer_manager.tokenizer.encode(adapted.text)
        tokens = chat_boundary(serving, processed, ids, mark, _boundaries)
        if tokens is None:
            dropped.record("fixed", f"fixed: {mark} points past the end of the prompt")
    adapted.kv_hints = _hints(update, tokens)


@_harmless
def after_completion(
    result: Any, _serving: Any, _request: Any, raw_request: Any = None
) -> None:
    """AFTER `OpenAIServingCompletion._convert_to_internal_request`. A mark is turned
    into tokens by `after_tokenize`, as on ``/generate``."""
    update = _update_of(raw_request)
    if update is not None:
        result[0].kv_hints = to_envelope([update])


@_harmless
def after_tokenize(
    tokenized: Any, manager: Any, _obj: Any, input_text: Any, *_args: Any, **_kw: Any
) -> None:
    """AFTER `TokenizerManager._create_tokenized_object`: a mark in characters on a
    plain prompt becomes a count of tokens."""
    hints = getattr(tokenized, "kv_hints", None)
    if hints is None:
        return
    for action in hints.actions:
        fixed = action.payload.get("fixed")
        if action.action_type != ACTION_TYPE or not isinstance(fixed, dict):
            continue
        chars = fixed.get("chars")
        if fixed.get("message") != 0 or not isinstance(chars, int) or chars < 0:
            continue
        tokens = None
        if isinstance(input_text, str):
            tokens = text_boundary(
                manager.tokenizer.encode,
                input_text,
                tokenized.input_ids,
                chars,
                _boundaries,
            )
        if tokens is None:
            dropped.record("fixed", f"fixed: character {chars} is past the prompt")
            del action.payload["fixed"]
        else:
            action.payload["fixed"] = {"tokens": tokens}


def _update_of(raw_request: Any) -> StepUpdate | None:
    value = raw_request.headers.get(HEADER) if raw_request is not None else None
    if value is None:
        return None
    updates = from_header(value)
    return updates[0] if updates else None


def _hints(update: StepUpdate, tokens: int | None) -> Any:
    fixed = None if tokens is None else FixedMark(tokens=tokens)
    update = msgspec.structs.replace(update, fixed=fixed)
    return decode_kv_hints_envelope(to_envelope([update]))
