"""What one call costs the radix tree: SGLang's real cache, without a model or a server.

A call finds its fixed prompt, its prompt is inserted after prefill and the whole at its
end, as SGLang's scheduler does. KVFlow's prompts are in pieces, SGLang's in one node.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from kvflow_sdk.wire import StepUpdate

from .results import Spread
from .tree import insert, make_cache, make_tag, slots_for

__all__ = ["FIXED", "time_calls"]

FIXED = (512, 8192)
"""Tokens of the fixed prompts."""
SUFFIX, ANSWER = 32, 16
WARM_UP = 5
_AGENT = "agent 0"


def time_calls(cores: tuple[str, ...], fixed: int, repeats: int) -> dict[str, Spread]:
    """Milliseconds of a call by tree core, which take turns."""
    tokens = fixed + (repeats + WARM_UP) * (SUFFIX + ANSWER)
    caches = {core: _Calls(core, fixed, tokens) for core in cores}
    spent: dict[str, list[float]] = {core: [] for core in cores}
    for turn in range(repeats + WARM_UP):
        for core, calls in caches.items():
            spent[core].append(calls.call(turn) * 1e3)
    return {core: Spread.of(times[WARM_UP:]) for core, times in spent.items()}


class _Calls:
    """One cache, which holds all that is ever inserted."""

    def __init__(self, core: str, fixed: int, tokens: int) -> None:
        self._cache, self._allocator = make_cache(core, tokens)
        self._tagged = core == "kvflow"
        self._fixed = array("q", range(fixed))
        if self._tagged:
            steps = {_AGENT: 0}
            self._cache.apply_update(
                StepUpdate(client="client", run="run", seq=1, steps=steps)
            )

    def call(self, turn: int) -> float:
        """Seconds that the tree takes for a call with a suffix of its own."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        first = (1 << 40) + turn * (SUFFIX + ANSWER)
        whole = self._fixed + array("q", range(first, first + SUFFIX + ANSWER))
        prompt = RadixKey(whole[:-ANSWER], None)
        tag = None
        if self._tagged:
            tag = make_tag("client", "run", _AGENT, len(self._fixed), digest=0)
        start = time.perf_counter()
        hit = self._cache.match_prefix(MatchPrefixParams(key=prompt))
        prefix = self._cache.path_device_indices(hit.last_device_node)
        spent = time.perf_counter() - start
        slots = slots_for(self._allocator, prefix, len(whole))
        start = time.perf_counter()
        self._insert(prompt, slots, len(prefix), 0, tag)
        self._insert(RadixKey(whole, None), slots, len(prompt), len(prompt), tag)
        return spent + time.perf_counter() - start

    def _insert(self, key: Any, slots: Any, held: int, inserted: int, tag: Any) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        params = InsertParams(
            key=key,
            value=slots[: len(key)],
            prev_prefix_len=held,
            inserted_len=inserted,
        )
        insert(self._cache, params, tag)
