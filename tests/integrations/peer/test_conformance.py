"""PEER passes the conformance kit, with scenarios of its own fixed shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import openai

import kvflow_sdk as kvflow
from kvflow_integrations.conformance import (
    Conformance,
    Harness,
    Moment,
    Program,
    Scenario,
    system_prompt,
)
from kvflow_integrations.peer import PEER, Role
from kvflow_sdk.client import Client
from kvflow_sdk.graph import START

EDGES = (
    (START, "planner"),
    ("planner", "executor"),
    ("executor", "expresser"),
    ("expresser", "reviewer"),
)
BEFORE = {"planner": 1, "executor": 2, "expresser": 3, "reviewer": 4}
PLANNER = Moment(
    ("planner",), {"planner": 0, "executor": 1, "expresser": 2, "reviewer": 3}
)
EXPRESSER = Moment(("expresser",), {"expresser": 0, "reviewer": 1})
REVIEWER = Moment(("reviewer",), {"reviewer": 0, "expresser": 1})


def executor(times: int) -> Moment:
    steps = {"executor": 0, "expresser": 1, "reviewer": 2}
    return Moment(("executor",) * times, steps)


def scenario(name: str, plan: str, scores: Sequence[int]) -> Scenario:
    return Scenario(
        name=name,
        edges=EDGES,
        choices={"reviewer": ("expresser",)},
        script={
            "planner": (plan,),
            "reviewer": tuple(f"Score: {score}" for score in scores),
        },
        before=BEFORE,
        moments=(
            PLANNER,
            executor(len(plan.split("\n"))),
            *[EXPRESSER, REVIEWER] * len(scores),
        ),
    )


class PEERProgram(Program):
    def __init__(self, url: str, client: Client | None) -> None:
        self.url = url
        kind, akind = openai.OpenAI, openai.AsyncOpenAI
        # Loading certificates costs more than a call, and loopback needs none.
        http, ahttp = openai.DefaultHttpxClient, openai.DefaultAsyncHttpxClient
        settings: Any = {"base_url": url, "api_key": "none", "max_retries": 1}
        off = kvflow.Client(config=kvflow.Config(disable=True))
        if client is not None:
            kind, akind = kvflow.OpenAI, kvflow.AsyncOpenAI

        def ask(prompt: kvflow.Prompt) -> str:
            with kind(**settings, http_client=http(verify=False)) as llm:
                chat = llm.chat.completions.create(
                    model="default",
                    messages=prompt.messages,  # type: ignore[arg-type]
                )
                return chat.choices[0].message.content or ""

        async def aask(prompt: kvflow.Prompt) -> str:
            async with akind(**settings, http_client=ahttp(verify=False)) as llm:
                chat = await llm.chat.completions.create(
                    model="default",
                    messages=prompt.messages,  # type: ignore[arg-type]
                )
                return chat.choices[0].message.content or ""

        roles = [Role(system_prompt(name), " {question}{subtask}") for name in BEFORE]
        self.peer = PEER(*roles, llm=ask, client=client or off)
        self.apeer = PEER(*roles, llm=aask, client=client or off)
        self.graph = self.peer.graph

    def run(self) -> object:
        return self.peer.run("Why?")

    async def arun(self) -> object:
        return await self.apeer.arun("Why?")

    def stream(self) -> Iterator[object]:
        return self.peer.stream("Why?")

    def astream(self) -> AsyncIterator[object]:
        return self.apeer.astream("Why?")

    def unwrap(self) -> PEERProgram:
        return PEERProgram(self.url, None)


class PEERHarness(Harness):
    def scenarios(self) -> Sequence[Scenario]:
        return (
            scenario("one sub-task", "one", [90]),
            scenario("parallel executors", "one\ntwo\nthree", [90]),
            scenario("review loop", "one\ntwo", [10, 90]),
        )

    def build(self, scenario: Scenario, url: str, client: Client | None) -> PEERProgram:
        return PEERProgram(url, client)


class TestPEER(Conformance):
    harness = PEERHarness()
