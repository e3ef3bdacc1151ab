"""One insert taken apart, so that a node ends where a fixed prompt or a piece does."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import InsertParams

__all__ = ["digest", "past", "prompt_digest", "up_to"]


def up_to(params: InsertParams, cut: int, done: int) -> InsertParams:
    """The insert of [0, cut), of which [0, done) is in the tree already."""
    return replace(past(params, done), key=params.key[:cut], value=params.value[:cut])


def past(params: InsertParams, done: int) -> InsertParams:
    """The same insert, with [0, done) owned by the tree: neither freed as duplicate
    slots nor counted as a second use."""
    if not done:
        return params
    return replace(
        params,
        prev_prefix_len=max(params.prev_prefix_len, done),
        inserted_len=max(params.inserted_len, done),
    )


def digest(req: Any, boundary: int) -> int:
    """Tells one fixed prompt from another: its tokens and their namespace."""
    tokens = array("q", req.origin_input_ids[:boundary])
    return prompt_digest(tokens, req.extra_key, req.cache_salt)


def prompt_digest(
    tokens: array[int], extra_key: str | None, cache_salt: str | None
) -> int:
    """As `digest`, of a fixed prompt by itself."""
    return hash((tokens.tobytes(), extra_key, cache_salt))
