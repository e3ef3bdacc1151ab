"""The state report is JSON whatever was measured."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any


def test_copies_too_fast_to_measure_leave_the_state_readable(
    make_harness: Callable[..., Any],
) -> None:
    from kvflow_server.engine.state import describe

    cache = make_harness().cache
    for _ in range(20):
        # Begun and ended between two ticks of the clock: its rate has no bound.
        cache.speeds.bus.took_at_least(512, 0.0)
    assert cache.speeds.bus.value == float("inf")
    report = json.loads(json.dumps(describe(cache), allow_nan=False))
    assert report["bus_bytes_per_s"] is None


def test_the_state_says_which_agents_share_how_many_tokens(
    make_harness: Callable[..., Any],
) -> None:
    from kvflow_server.engine.state import describe

    harness = make_harness()
    harness.update({"a": 0, "b": 1, "c": 2})
    common = list(range(20))
    prompts = {
        "a": [*common, *range(1000, 1020)],
        "b": [*common, *range(2000, 2020)],
        "c": [*common[:8], *range(3000, 3020)],
    }
    for agent, prompt in prompts.items():
        harness.insert(prompt, harness.tag(agent, len(prompt), prompt))
    (client,) = describe(harness.cache)["clients"].values()
    assert client["shared"] == [
        {"agents": ["a", "b"], "tokens": 20},
        {"agents": ["a", "b", "c"], "tokens": 8},
    ]


def test_an_agent_that_parts_at_its_first_token_is_told_of_when_no_run_is_live(
    make_harness: Callable[..., Any],
) -> None:
    """As with a time at the head of the prompt: it never owns a prompt."""
    from kvflow_server.engine.state import describe

    harness = make_harness()
    harness.update({"a": 0})
    for number in range(4):
        prompt = array("q", [7000 + number, *range(100)])
        harness.cache.learner.observe(harness.client, "a", prompt)
    harness.update(None, final=True)
    (client,) = describe(harness.cache)["clients"].values()
    assert client["runs"] == {}
    drift = client["agents"]["a"]["learned"]["drift"]
    assert (drift["calls"], drift["token"]) == (3, 0)
