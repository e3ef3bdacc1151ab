"""500 workflow requests at once, everything on, memory far too small: the answers of
stock SGLang without a cache, token for token.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvflow_sdk import AgentStepGraph, Run, wire
from kvflow_sdk.wire import FixedMark

if TYPE_CHECKING:
    from conftest import Answer, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.full]

CLIENTS, RUNS, AGENTS = 10, 10, 5
CALLS = CLIENTS * RUNS * AGENTS
TOLERATED = CALLS // 100
"""Answers that may differ because batches of another shape round differently."""
ROUNDING = 1e-3
"""How far rounding may bring log-probabilities apart; a read of KV that is not there
moves them by 0.1 or more."""
VOCAB = 2048


@dataclass(frozen=True, slots=True)
class Call:
    prompt: list[int]
    output: int
    hints: dict[str, Any]


def calls() -> list[Call]:
    """Every agent of every run of every client; the runs of a client share prompts."""
    source = random.Random(500)
    made = []
    for number in range(CLIENTS):
        client = f"crowd-{number}-{source.getrandbits(64):016x}"
        fixed = [tokens(source, source.randint(48, 128)) for _ in range(AGENTS)]
        names = [f"agent-{agent}" for agent in range(AGENTS)]
        graph = AgentStepGraph.sequence(names)
        for _ in range(RUNS):
            run = Run(graph, client=client, run_id=f"{source.getrandbits(64):016x}")
            for name, prompt in zip(names, fixed, strict=True):
                run.start(name)
                mark = FixedMark(tokens=len(prompt))
                update = run.snapshot(agent=name, fixed=mark)
                suffix = tokens(source, source.randint(4, 24))
                hints = wire.to_envelope([update])
                made.append(Call([*prompt, *suffix], source.randint(1, 6), hints))
                run.end(name)
    source.shuffle(made)
    return made


def tokens(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, VOCAB) for _ in range(length)]


async def at_once(server: Server, asked: list[Call], answer_of: Any) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=server.url,
        headers=server.http.headers,
        timeout=240,
        limits=limits,
        trust_env=False,
    ) as http:

        async def ask(call: Call) -> Answer:
            body = {
                "input_ids": call.prompt,
                "kv_hints": call.hints,
                "return_logprob": True,
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": call.output,
                    "ignore_eos": True,
                },
            }
            reply = await http.post("/generate", json=body)
            assert reply.status_code == 200, reply.text
            answer: Answer = answer_of(reply.json())
            return answer

        return await asyncio.gather(*map(ask, asked))


def test_500_requests_at_once_are_answered_as_without_a_cache(
    server: Server, truth: Server, answer_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = calls()
    assert len(asked) == CALLS
    before = server.state()["counters"]
    answers = asyncio.run(at_once(server, asked, answer_of))
    right = asyncio.run(at_once(truth, asked, answer_of))
    differing = [
        (call, answer, expected)
        for call, answer, expected in zip(asked, answers, right, strict=True)
        if not answer.agrees_with(expected)
    ]
    with capsys.disabled():
        print(f"\n{len(differing)} of {CALLS} answers differed in a batch")
    assert len(differing) <= TOLERATED
    for call, answer, expected in differing:
        same = [a == b for a, b in zip(answer.tokens, expected.tokens, strict=True)]
        end = same.index(False) + 1 if False in same else len(same)
        assert answer.logprobs[:end] == pytest.approx(
            expected.logprobs[:end], rel=0, abs=ROUNDING
        )
        alone = [
            one.ask(call.prompt, call.hints, output=call.output)
            for one in (server, truth)
        ]
        assert alone[0].agrees_with(alone[1])
    after = server.settle()
    assert after["integrity"] == "ok"
    grown = {name: count - before[name] for name, count in after["counters"].items()}
    assert grown["tagged_requests"] >= CALLS
    assert grown["load_on_demand_tokens"] + grown["prefetch_tokens"] > 0
