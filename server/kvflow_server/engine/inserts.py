"""One insert taken apart, so that a node ends where a fixed prompt or a piece does."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import InsertParams

__all__ = ["digest", "in_pieces", "prompt_digest"]


def in_pieces(params: InsertParams, cuts: Sequence[int]) -> list[InsertParams]:
    """The inserts that write the same and leave a node's end at each of `cuts` (tokens,
    ascending); to be made in order."""
    starts = [0, *cuts]
    pieces = [_up_to(params, end, start) for start, end in pairwise(starts)]
    return [*pieces, _past(params, starts[-1])]


def _up_to(params: InsertParams, cut: int, done: int) -> InsertParams:
    """The insert of [0, cut), of which [0, done) is in the tree already."""
    return replace(_past(params, done), key=params.key[:cut], value=params.value[:cut])


def _past(params: InsertParams, done: int) -> InsertParams:
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
