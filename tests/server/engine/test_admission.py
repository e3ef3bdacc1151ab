"""SGLang's own prefill adder, with every row of the admission table before it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow_sdk.wire import StepUpdate

Make = Callable[..., Any]
A, B = (list(range(base, base + 48)) for base in (1000, 2000))
FRESH = list(range(7000, 7010))
ASKED = 4
"""Tokens behind a prompt."""
CLIENT = "client-0123456789abcdef"


@pytest.fixture
def harness(make_harness: Make) -> Any:
    """Prompts a and b, only in host memory."""
    made = make_harness(pool=256, piece=16)
    for agent, tokens in (("a", A), ("b", B)):
        made.insert(tokens, made.tag(agent, 48, tokens))
        made.backup()
    made.evict(1000)
    # A copy of a prompt takes longer than what a request computes beside it.
    made.say_speeds(bus=100, prefill=100)
    return made


def request(name: str, tokens: list[int], output: int = 8) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    ids = array("q", [*tokens, *range(ASKED)])
    return Req(name, "", ids, SamplingParams(max_new_tokens=output))


def scheduler_pass(
    harness: Any, waiting: Sequence[Any], decoding: Sequence[Any] = ()
) -> tuple[list[str], int]:
    """One pass over the queue; who was admitted, and the copy their batch waits for."""
    from sglang.srt.managers.schedule_policy import AddReqResult

    from kvflow_server.engine.scheduling import KVFlowPrefillAdder

    cache = harness.cache
    adder = KVFlowPrefillAdder(
        page_size=1,
        tree_cache=cache,
        token_to_kv_pool_allocator=harness.allocator,
        running_batch=SimpleNamespace(reqs=list(decoding)),
        new_token_ratio=0.5,
        rem_input_tokens=10_000,
        rem_chunk_tokens=None,
        waiting_queue_len=len(waiting),
    )
    for req in waiting:
        req.init_next_round_input(cache)
        result = adder.add_one_req(req, False, None)
        if result != AddReqResult.CONTINUE:
            break
    consumer = cache.ready_to_load_host_cache()
    cache.starved = not adder.can_run_list and not decoding
    harness.prefetch()
    return [req.rid for req in adder.can_run_list], consumer


def on_device(harness: Any, tokens: list[int]) -> None:
    for _ in range(4):
        harness.update({"a": 0} if tokens is A else {"b": 0})
        harness.prefetch()
        harness.finish_loads()
    assert harness.device_tokens(tokens) == 48


def loading(harness: Any, tokens: list[int]) -> list[Any]:
    """Its copy is under way, all of it in one piece; the copy."""
    (*_, node) = harness.cache.tree_core.walk(harness.key(tokens))
    harness.cache.loads.start(harness.cache.missing_on_device(node))
    found: list[Any] = harness.cache.loads.on_path([node])
    return found


def test_what_is_on_the_device_is_admitted(harness: Any) -> None:
    on_device(harness, A)
    assert scheduler_pass(harness, [request("a", A)]) == (["a"], -1)


def test_what_is_loading_lets_others_pass(harness: Any) -> None:
    loading(harness, A)
    waiting = [request("a", A), request("fresh", FRESH)]
    admitted, _ = scheduler_pass(harness, waiting, [request("decoding", B[:5])])
    assert admitted == ["fresh"]
    assert harness.cache.counters.skipped_passes == 1
    harness.finish_loads()
    assert scheduler_pass(harness, waiting[:1])[0] == ["a"]


def test_alone_a_request_joins_the_copy_in_flight(harness: Any) -> None:
    (operation,) = loading(harness, A)
    assert scheduler_pass(harness, [request("a", A)]) == (["a"], operation.producer)
    assert harness.cache.counters.late_join_tokens == 48
    assert not harness.cache.loads.active
    harness.finish_loads()


def test_while_others_decode_a_backed_up_prefix_is_copied_first(harness: Any) -> None:
    waiting, decoding = [request("a", A)], [request("decoding", FRESH)]
    assert scheduler_pass(harness, waiting, decoding) == ([], -1)
    assert harness.cache.loads.in_flight == 1
    assert harness.cache.counters.load_on_demand_tokens == 48
    assert scheduler_pass(harness, waiting, decoding) == ([], -1)
    harness.finish_loads()
    assert scheduler_pass(harness, waiting, decoding) == (["a"], -1)
    assert harness.cache.counters.load_on_demand_tokens == 48, "once"


def test_a_copy_that_computing_hides_is_not_waited_for(harness: Any) -> None:
    harness.say_speeds(bus=1_000_000_000, prefill=100)
    admitted, consumer = scheduler_pass(
        harness, [request("a", A)], [request("decoding", FRESH)]
    )
    assert admitted == ["a"]
    assert consumer >= 0
    assert harness.cache.counters.skipped_passes == 0
    harness.finish_loads()


def test_nor_one_that_ends_while_the_weights_are_read_once(harness: Any) -> None:
    for _ in range(16):
        harness.cache.speeds.light.took_at_most(1, 1.0)
    decoding = [request("decoding", FRESH)]
    admitted, consumer = scheduler_pass(harness, [request("a", A)], decoding)
    assert admitted == ["a"]
    assert consumer >= 0
    harness.finish_loads()


def test_what_is_in_the_same_batch_hides_a_copy_and_is_on_the_bus_before_it(
    harness: Any,
) -> None:
    long = request("long", list(range(9000, 9060)))
    waiting = [long, request("a", A), request("b", B)]
    assert scheduler_pass(harness, waiting)[0] == ["long", "a"]
    assert harness.cache.counters.skipped_passes == 1
    harness.finish_loads()


def test_alone_a_backed_up_prefix_is_loaded_layer_by_layer(harness: Any) -> None:
    req = request("a", A)
    admitted, consumer = scheduler_pass(harness, [req])
    assert admitted == ["a"]
    assert consumer >= 0
    assert req.host_loaded_length == 48
    harness.finish_loads()


def test_without_room_nothing_is_copied(harness: Any) -> None:
    held = harness.allocator.alloc(220)
    req = request("a", A)
    decoding = [request("decoding", FRESH)]
    assert scheduler_pass(harness, [req], decoding) == ([], -1)
    assert not harness.cache.loads.active
    assert harness.cache.counters.recompute_tokens == 0, "it was not admitted"
    harness.allocator.free(held)
    assert scheduler_pass(harness, [req]) == (["a"], 0)
    harness.finish_loads()


def test_whoever_was_passed_over_too_often_is_computed_again(harness: Any) -> None:
    req = request("a", A)
    req.kvflow_skips = harness.cache.config.max_skips
    admitted, consumer = scheduler_pass(harness, [req], [request("decoding", FRESH)])
    assert (admitted, consumer) == (["a"], -1)
    assert req.host_loaded_length == 0
    assert harness.cache.counters.recompute_tokens == 48
    assert req.kvflow_skips == 0, "a later retraction begins anew"


def test_and_joins_what_is_loading_all_the_same(harness: Any) -> None:
    (operation,) = loading(harness, A)
    req = request("a", A)
    req.kvflow_skips = harness.cache.config.max_skips
    admitted, consumer = scheduler_pass(harness, [req], [request("decoding", FRESH)])
    assert (admitted, consumer) == (["a"], operation.producer)
    assert harness.cache.counters.recompute_tokens == 0
    harness.finish_loads()


def test_of_several_that_load_one_is_admitted_once_nobody_was_ready(
    harness: Any,
) -> None:
    waiting = [request("a", A), request("b", B)]
    assert scheduler_pass(harness, waiting)[0] == []
    assert harness.cache.starved
    admitted, consumer = scheduler_pass(harness, waiting)
    assert admitted == ["a"]
    assert consumer >= 0
    harness.finish_loads()


def test_over_a_bus_slower_than_computing_a_lone_request_computes(
    harness: Any,
) -> None:
    harness.say_speeds(bus=10, prefill=1000)
    req = request("a", A)
    assert scheduler_pass(harness, [req]) == (["a"], -1)
    assert req.host_loaded_length == 0
    assert harness.cache.counters.recompute_tokens == 48


def test_a_prefetch_that_a_request_uses_is_settled_with_its_agent(harness: Any) -> None:
    harness.cache.apply_update(
        StepUpdate(client=CLIENT, run="run", seq=99, steps={"a": 0})
    )
    on_device(harness, A)
    usage = harness.cache.prefetcher.accounts.of(CLIENT)["a"]
    assert (usage.issued, usage.used) == (48, 0)
    scheduler_pass(harness, [request("a", A)])
    assert (usage.issued, usage.used) == (48, 48)
