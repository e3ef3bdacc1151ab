"""What comes out of a cache that is loaded, prefetched and joined is what was computed.

Replayed without a flush: what a wrong copy computes would stay in the tree.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark

if TYPE_CHECKING:
    from conftest import Answer, Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

AGENTS = tuple(f"agent-{number}" for number in range(8))
FIXED = 200
"""Tokens: all eight fixed prompts are 1.3 times the pool."""
AT_LEAST, AT_MOST = 3, 40
WANTED = ("prefetch_tokens", "late_join_tokens", "load_on_demand_tokens")
"""The run goes on until each has happened, so that the comparison says something."""


def test_a_cached_prefix_is_visible_in_the_log_probabilities(
    truth: Server, caller: Caller
) -> None:
    # With weights near zero every prefix would look alike, and nothing be proven.
    suffix = caller.prompt(16)
    one, other = (truth.ask(caller.prompt(FIXED) + suffix) for _ in range(2))
    change = max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))
    assert change > 1e-2


def test_answers_survive_eviction_prefetch_and_joins(
    server: Server, truth: Server, caller: Caller
) -> None:
    prompts = {agent: caller.prompt(FIXED) for agent in AGENTS}
    before = server.state()["counters"]
    asked: list[tuple[list[int], Answer]] = []
    for turn in range(AT_MOST):
        asked += run_once(server, caller, prompts, turn)
        now = server.state()["counters"]
        if turn + 1 >= AT_LEAST and all(now[name] > before[name] for name in WANTED):
            break
    else:
        pytest.fail(f"after {AT_MOST} runs not all of {WANTED} happened: {now}")
    for prompt, answer in asked:
        assert truth.ask(prompt, output=len(answer.tokens)).agrees_with(answer)
    assert server.state()["integrity"] == "ok"


def run_once(
    server: Server, caller: Caller, prompts: dict[str, list[int]], turn: int
) -> list[tuple[list[int], Answer]]:
    """One run of the agents in a row. Short outputs make the next agent come while its
    prompt is still on its way, long ones let the prefetch end first."""
    outputs = random.Random(turn)
    caller.run = f"run-{turn}"
    asked = []
    for number, agent in enumerate(AGENTS):
        steps = {later: step for step, later in enumerate(AGENTS[number:])}
        mark = FixedMark(tokens=FIXED)
        server.send(caller.update(steps))
        update = caller.update(steps, agent=agent, fixed=mark)
        prompt = prompts[agent] + caller.prompt(16)
        hints = wire.to_envelope([update])
        answer = server.ask(prompt, hints, output=outputs.choice((1, 2, 8, 16)))
        asked.append((prompt, answer))
    server.send(caller.update(final=True))
    return asked
