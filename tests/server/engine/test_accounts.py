"""Hits by tier and kind, prefetches by client, and the metrics that show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.engine.accounts import note_admission, note_skip
from kvflow_server.engine.counters import Hits
from kvflow_server.engine.metrics import Publisher

pytestmark = pytest.mark.sglang

CLIENT = "client-0123456789abcdef"
OTHER = "client-of-somebody-else"


@given(st.integers(0, 50), *[st.integers(0, 50)] * 3)
def test_every_token_is_counted_once_whatever_the_tiers(
    boundary: int, device: int, host: int, computed: int
) -> None:
    ends = (device, device + host, device + host + computed)
    fixed, dynamic = Hits(), Hits()
    fixed.add(0, min(boundary, ends[2]), ends)
    dynamic.add(min(boundary, ends[2]), ends[2], ends)
    assert fixed.device + dynamic.device == device
    assert fixed.host + dynamic.host == host
    assert fixed.recomputed + dynamic.recomputed == computed
    assert sum(fixed.as_dict().values()) == min(boundary, ends[2])


def request(prompt: int, prefix: int, tag: Any = None, *, loaded: int = 0) -> Any:
    """One of SGLang's own, as it is when it has been put into a batch."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    req = Req("r", "", list(range(prompt)), SamplingParams(max_new_tokens=1))
    req.prefix_len = prefix
    req.host_hit_length = req.host_loaded_length = loaded
    req.kvflow_tag = tag
    return req


def test_an_admitted_request_is_counted_for_its_client_and_in_all(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness()
    cache = harness.cache
    harness.update({"planner": 0})
    tag = harness.tag("planner", 60, list(range(100)))
    note_admission(cache, request(100, 70, tag, loaded=30))
    account = cache.accounts.find(CLIENT)
    assert account.fixed == cache.counters.fixed == Hits(device=40, host=20)
    assert account.dynamic == Hits(host=10, recomputed=30)
    assert account.requests == 1


def test_a_request_that_says_nothing_is_nobodys(
    make_harness: Callable[..., Any],
) -> None:
    cache = make_harness().cache
    note_admission(cache, request(100, 70))
    assert cache.counters.untagged == Hits(device=70, recomputed=30)
    assert len(cache.accounts) == 0


def test_what_was_loaded_while_a_request_was_skipped_is_a_hit_in_host_memory(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness()
    harness.update({"planner": 0})
    req = request(100, 0, harness.tag("planner", 60, list(range(100))))
    req.host_hit_length = 60
    note_skip(harness.cache, req, load=True)
    note_skip(harness.cache, req, load=False)
    req.prefix_len, req.host_hit_length = 60, 0
    note_admission(harness.cache, req)
    assert harness.cache.counters.fixed == Hits(host=60)
    assert harness.cache.counters.skipped_passes == 2
    assert harness.cache.counters.skipped_requests == 1
    account = harness.cache.accounts.find(CLIENT)
    assert account.skipped_requests == 1
    assert account.skipped_s == harness.cache.counters.skipped_s > 0


def test_what_is_computed_again_on_purpose_is_no_hit(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness()
    harness.update({"planner": 0})
    req = request(100, 0, harness.tag("planner", 60, list(range(100))))
    req.host_hit_length = 60
    note_skip(harness.cache, req, load=True)
    req.host_hit_length = 0
    note_admission(harness.cache, req, recomputed=60)
    assert harness.cache.counters.fixed == Hits(recomputed=60)


def test_an_account_ends_with_its_clients_lease(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness()
    harness.update({"planner": 0})
    harness.update({"planner": 0}, client=OTHER)
    assert list(harness.cache.accounts.recent()) == [OTHER, CLIENT]
    harness.cache.table.expire(float("inf"))
    harness.update({"planner": 0}, client=OTHER)
    harness.cache.forget_clients([CLIENT])
    assert list(harness.cache.accounts.recent()) == [OTHER]


def test_the_metrics_follow_the_counters(make_harness: Callable[..., Any]) -> None:
    from prometheus_client import CollectorRegistry

    harness = make_harness()
    cache = harness.cache
    registry = CollectorRegistry()
    publisher = Publisher(cache, {"model_name": "m", "tp_rank": 0}, registry)
    base = {"model_name": "m", "tp_rank": "0"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sglang:kvflow_{name}", {**base, **labels})

    for _ in range(2):  # a total, however often it is published
        harness.update({"planner": 0, "writer": 1})
        cache.counters.prefetch_tokens += 10
        cache.counters.note_latency(0.003)
        cache.counters.skipped_s += 0.5
        cache.dropped.record("run", "of a test")
        note_admission(cache, request(100, 70))
        publisher.publish()
        publisher.publish()
    per_token = cache.cache_controller.mem_pool_host.size_per_token
    assert value("prompt_tokens_total", kind="untagged", tier="device") == 140
    assert value("prefetch_bytes_total", outcome="issued") == 20 * per_token
    assert value("skipped_seconds_total") == 1.0
    assert value("step_updates_total", outcome="applied") == 2
    assert value("step_latency_seconds_count") == 2
    assert value("clients") == value("runs") == 1
    assert value("agents") == 2
    dropped = {"model_name": "m", "stage": "scheduler", "reason": "run"}
    name = "sglang:kvflow_metadata_dropped_total"
    assert registry.get_sample_value(name, dropped) == 2


def test_every_counter_has_a_metric(make_harness: Callable[..., Any]) -> None:
    from prometheus_client import CollectorRegistry

    cache = make_harness().cache
    registry = CollectorRegistry()
    publisher = Publisher(cache, {"model_name": "m"}, registry)
    counters = [name for _child, name, _scale in publisher._series]
    assert len(counters) == len(set(counters))
    assert set(cache.counters.as_dict()) - set(counters) == {
        "step_messages",
        "step_latency_s",
    }


def test_evictions_are_counted_by_the_class_they_went_in(
    make_harness: Callable[..., Any],
) -> None:
    from prometheus_client import CollectorRegistry

    harness = make_harness(pool=256)
    registry = CollectorRegistry()
    publisher = Publisher(harness.cache, {"model_name": "m"}, registry)
    harness.update({"planner": 0})
    prompt = list(range(1, 33))
    harness.insert(prompt, harness.tag("planner", 32, prompt))
    harness.insert(list(range(100, 116)))
    harness.backup()
    harness.evict(256)
    publisher.publish()
    name = "sglang:kvflow_evicted_tokens_total"
    for group, tokens in (("unknown", 16), ("fixed", 32), ("suffix", 0)):
        labels = {"model_name": "m", "priority_class": group}
        assert registry.get_sample_value(name, labels) == tokens


def test_an_agent_too_many_takes_the_prompts_of_the_oldest_out_of_the_books(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness()
    cache = harness.cache
    cache.prompts._agents = 2
    harness.update({"a": 0})
    prompt = list(range(1, 33))
    for agent in ("a", "b", "a", "c"):
        harness.insert(prompt, harness.tag(agent, 32, prompt))
    assert [agent for _client, agent in cache.prompts.agents()] == ["a", "c"]
    harness.check()


def test_what_a_client_holds_is_counted_once_by_kind(
    make_harness: Callable[..., Any],
) -> None:
    from kvflow_sdk.wire import shown_client
    from kvflow_server.engine.state import describe

    harness = make_harness()
    harness.update({"a": 0, "b": 1})
    shared = list(range(1, 33))
    for agent, own in (("a", [101]), ("b", [102])):
        prompt = shared + own * 16 + [200 + own[0]] * 8
        harness.insert(prompt, harness.tag(agent, 48, prompt))
    (known,) = [describe(harness.cache)["clients"][shown_client(CLIENT)]]
    assert known["held"]["fixed"]["device"] == 32 + 2 * 16
    assert known["held"]["dynamic"]["device"] == 2 * 8
    assert known["held"]["protected"] == 32 + 2 * 16
