"""The simulator's stock LRU is SGLang's: the same hits, call by call, on any trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvflow_server.engine.trace import RecordedCall
from kvflow_server.sim.belady import AtOnce
from kvflow_server.sim.replay import tokens_of

pytestmark = pytest.mark.sglang

BLOCK, POOL, VOCABULARY = 4, 64, 1 << 30
TEXTS = [(1,), (2,), (1, 3), (1, 3, 4), (1, 5), (2, 6, 7, 8)]


def serve(harness: Any, prompt: list[int], answer: list[int]) -> int:
    """One call on SGLang's own cache, as its scheduler would; the tokens found."""
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams

    cache, allocator = harness.cache, harness.allocator

    def slots(count: int) -> Any:
        short = count - allocator.available_size()
        if short > 0:
            cache.evict(EvictParams(num_tokens=short))
        return allocator.alloc(count).to(torch.int64)

    hit = harness.match(prompt[:-1])
    prefix = cache.path_device_indices(hit.last_device_node)
    lock = cache.inc_lock_ref(hit.last_device_node)
    value = torch.cat([prefix, slots(len(prompt) - len(prefix))])
    insert = InsertParams(
        key=harness.key(prompt), value=value, prev_prefix_len=len(prefix)
    )
    node = cache.insert(insert).last_device_node
    held = cache.inc_lock_ref(node)
    cache.dec_lock_ref(hit.last_device_node, lock.to_dec_params())
    value = torch.cat([cache.path_device_indices(node), slots(len(answer))])
    whole = harness.key([*prompt, *answer])
    cache.insert(InsertParams(key=whole, value=value, prev_prefix_len=len(prompt)))
    cache.dec_lock_ref(node, held.to_dec_params())
    return len(prefix)


calls = st.lists(
    st.tuples(st.sampled_from(TEXTS), st.integers(0, 3), st.integers(1, 6)),
    min_size=1,
    max_size=40,
)


@given(calls=calls)
@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_hits_are_those_of_sglang_call_by_call(
    make_harness: Callable[..., Any], calls: list[tuple[tuple[int, ...], int, int]]
) -> None:
    harness = make_harness(pool=POOL, host=False, stock=True)
    simulated = AtOnce(POOL, None)
    for number, (text, cut, output) in enumerate(calls):
        blocks = list(text) if not cut else [*text[:-1], 1000 + number]
        call = RecordedCall(
            t=float(number),
            prompt=BLOCK * len(text) - cut,
            output=output,
            blocks=blocks,
        )
        prompt = [
            token
            for block, _, count in call.spans(BLOCK)
            for token in tokens_of(block, count, VOCABULARY)
        ]
        answer = list(tokens_of(10**6 + number, output, VOCABULARY))
        assert serve(harness, prompt, answer) == simulated.serve(call, BLOCK)
