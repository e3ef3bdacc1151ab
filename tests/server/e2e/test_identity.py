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
AT_LEAST, AT_MOST = 3, 30
WANTED = ("prefetch_used_tokens", "late_join_tokens", "load_on_demand_tokens")
"""The runs go on until each has happened, so that the comparison says something."""


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
        missing = [name for name in WANTED if now[name] == before[name]]
        if turn + 1 >= AT_LEAST and not missing:
            break
    for prompt, answer in asked:
        assert truth.ask(prompt, output=len(answer.tokens)).agrees_with(answer)
    assert missing == []
    assert server.state()["integrity"] == "ok"


def test_a_workflow_in_its_steady_state_writes_nothing_to_host_memory(
    server: Server, caller: Caller
) -> None:
    prompts = {agent: caller.prompt(FIXED) for agent in AGENTS}
    run_once(server, caller, prompts, turn=0)
    before = server.settle()["counters"]
    for turn in (3, 6):  # those in order, each with other suffixes
        run_once(server, caller, prompts, turn)
    after = server.settle()["counters"]
    assert after["h2d_tokens"] > before["h2d_tokens"], "all of it fits on the device"
    assert after["d2h_tokens"] == before["d2h_tokens"]
    assert after["d2h_bytes"] == before["d2h_bytes"]


def test_a_flush_in_mid_prefetch_is_done_and_leaves_nothing_behind(
    server: Server, truth: Server, caller: Caller
) -> None:
    prompts = {agent: caller.prompt(FIXED) for agent in AGENTS}
    asked = run_once(server, caller, prompts, turn=0)
    server.settle()
    server.send(caller.update({AGENTS[0]: 0, AGENTS[1]: 1}))
    assert server.http.post("/flush_cache").status_code == 200
    state = server.state()
    assert state["pool"]["free"] == state["pool"]["tokens"]
    assert state["sizes"]["prompts"] == 0
    assert state["integrity"] == "ok"
    for prompt, answer in asked[:2]:
        again = server.ask(prompt, output=len(answer.tokens))
        assert (again.device, again.host) == (0, 0)
        assert truth.ask(prompt, output=len(answer.tokens)).agrees_with(again)


def run_once(
    server: Server, caller: Caller, prompts: dict[str, list[int]], turn: int
) -> list[tuple[list[int], Answer]]:
    """One run of the agents. Every third is in order and says what comes next, so that
    it is prefetched; every third says it just before it calls, so that the call meets
    its prompt on the way; and every third says nothing before."""
    source = random.Random(turn)
    caller.run = f"run-{turn}"
    in_order = turn % 3 == 0
    order = AGENTS if in_order else source.sample(AGENTS, len(AGENTS))
    asked = []
    for number, agent in enumerate(order):
        known = order[number:] if in_order else [agent]
        steps = {later: step for step, later in enumerate(known)}
        if turn % 3 == 1:
            server.send(caller.update(steps))
        update = caller.update(steps, agent=agent, fixed=FixedMark(tokens=FIXED))
        prompt = prompts[agent] + caller.prompt(16)
        output = source.choice((1, 2, 8, 16))
        answer = server.ask(prompt, wire.to_envelope([update]), output=output)
        asked.append((prompt, answer))
    server.send(caller.update(final=True))
    return asked
