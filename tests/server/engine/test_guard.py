"""An error in KVFlow's own code: counted, logged once, and SGLang goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

Make = Callable[..., Any]
PROMPT = list(range(1000, 1048))


class BrokenError(Exception):
    """Nobody foresaw it."""


def fails(*_args: Any, **_kwargs: Any) -> Any:
    raise BrokenError


@pytest.fixture
def harness(make_harness: Make) -> Any:
    """As in production: not in debug mode."""
    made = make_harness(pool=256, piece=16)
    made.cache.guard.strict = False
    return made


def adder(harness: Any, waiting: int = 1) -> Any:
    from kvflow_server.engine.scheduling import KVFlowPrefillAdder

    return KVFlowPrefillAdder(
        page_size=1,
        tree_cache=harness.cache,
        token_to_kv_pool_allocator=harness.allocator,
        running_batch=SimpleNamespace(reqs=[]),
        new_token_ratio=0.5,
        rem_input_tokens=10_000,
        rem_chunk_tokens=None,
        waiting_queue_len=waiting,
    )


def request(harness: Any, tokens: list[int]) -> Any:
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    ids = array("q", [*tokens, 1, 2, 3])
    made = Req("rid", "", ids, SamplingParams(max_new_tokens=8))
    made.init_next_round_input(harness.cache)
    return made


def loading(harness: Any) -> None:
    """The prompt's copy to the device is under way."""
    harness.insert(PROMPT, harness.tag("a", 48, PROMPT))
    harness.backup()
    harness.evict(1000)
    (*_, node) = harness.cache.tree_core.walk(harness.key(PROMPT))
    harness.cache.loads.start(harness.cache.missing_on_device(node))
    assert harness.cache.loads.active


def scheduler(harness: Any) -> Any:
    context = SimpleNamespace(current_scheduler_metrics_enabled=False)
    return SimpleNamespace(
        tree_cache=harness.cache,
        waiting_queue=[],
        metrics_collector_context=context,
        new_token_ratio_tracker=SimpleNamespace(current=0.5),
    )


def plan(*, full: bool = False) -> Any:
    running = SimpleNamespace(reqs=[], batch_is_full=full)
    return SimpleNamespace(running_batch=running, batch_to_run=None)


def test_an_error_is_counted_each_time_and_logged_once(
    harness: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kvflow_server.engine.scheduling import after_pass

    monkeypatch.setattr(harness.cache.prefetcher, "run", fails)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            after_pass(plan(), scheduler(harness))
    assert harness.cache.counters.internal_errors == 3
    assert len([r for r in caplog.records if "KVFlow failed" in r.message]) == 1


def test_in_debug_mode_an_error_is_seen(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_server.engine.scheduling import after_pass

    harness.cache.guard.strict = True
    monkeypatch.setattr(harness.cache.prefetcher, "run", fails)
    with pytest.raises(BrokenError):
        after_pass(plan(), scheduler(harness))


def test_a_request_whose_path_cannot_be_judged_reads_nothing_that_is_loading(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading(harness)
    monkeypatch.setattr(harness.cache.loads, "on_path", fails)
    one = adder(harness)
    one.add_one_req(request(harness, PROMPT), False, None)
    assert len(one.can_run_list) == 1
    assert not harness.cache.loads.active, "every copy was awaited"
    assert harness.cache.counters.internal_errors == 1


def test_a_join_that_fails_waits_for_the_copies_instead(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading(harness)
    one = adder(harness)
    one.add_one_req(request(harness, PROMPT), False, None)
    assert harness.cache.loads.joining
    with monkeypatch.context() as patched:
        patched.setattr(harness.cache.loads, "take_join", fails)
        assert harness.cache.ready_to_load_host_cache() == -1
    assert not harness.cache.loads.active
    assert harness.cache.ready_to_load_host_cache() == -1
    harness.check()


@pytest.mark.parametrize(
    "name", ["table.apply", "prompts.record", "tree_core.missing_boundaries"]
)
def test_a_prompt_is_kept_as_stock_would_when_its_labels_fail(
    harness: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owner, method = name.split(".")
    monkeypatch.setattr(getattr(harness.cache, owner), method, fails)
    harness.update({"a": 0})
    with harness.cache.guard:
        assert harness.insert(PROMPT, harness.tag("a", 48, PROMPT))
    assert harness.device_tokens(PROMPT) == 48
    assert harness.cache.counters.internal_errors


def test_the_state_is_asked_of_a_scheduler_that_cannot_say_it(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_server.engine import handlers
    from kvflow_server.engine.messages import KVFlowStateReq

    monkeypatch.setattr(handlers, "describe", fails)
    known: list[Any] = []
    server = SimpleNamespace(tree_cache=harness.cache, _request_dispatcher=known)
    monkeypatch.setattr(handlers, "TypeBasedDispatcher", list)
    handlers.add_handlers(None, server)
    answer = dict(known)[KVFlowStateReq]
    assert answer(KVFlowStateReq(clients=1, ids=False)).state == {}


def test_a_tick_that_cannot_be_taken_in_does_not_reach_sglang(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_server.engine.handlers import take_ticks
    from kvflow_server.engine.messages import KVFlowTick

    monkeypatch.setattr(type(harness.cache.clock), "advance", fails)
    received: list[Any] = [KVFlowTick(now=1.0), KVFlowTick(now=2.0)]
    server = SimpleNamespace(tree_cache=harness.cache, _engine_paused=False)
    take_ticks(server, received)
    assert received == []
    assert harness.cache.counters.internal_errors == 1


def test_a_full_batch_takes_requests_again_when_a_copy_ends(harness: Any) -> None:
    from kvflow_server.engine.scheduling import after_pass

    loading(harness)
    full = plan(full=True)
    after_pass(full, scheduler(harness))
    assert full.running_batch.batch_is_full
    harness.finish_loads()
    after_pass(full, scheduler(harness))
    assert not full.running_batch.batch_is_full
