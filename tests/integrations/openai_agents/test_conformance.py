"""The OpenAI Agents SDK passes the conformance kit, with handoffs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
from agents import Agent, Runner

from kvflow_integrations import openai_agents as integration
from kvflow_integrations.conformance import (
    Conformance,
    Harness,
    Mode,
    Moment,
    Program,
    Scenario,
    steps,
    system_prompt,
)
from kvflow_sdk.client import Client
from kvflow_sdk.graph import START

from .conftest import ByWord, client_of


class AgentsProgram(Program):
    """Every run has an HTTP client of its own, because it has an event loop of its own."""

    def __init__(self, scenario: Scenario, url: str, client: Client | None) -> None:
        self._scenario = scenario
        self._url = url
        self._client = client
        self._wrapped: list[Agent[Any]] = []
        self.graph = integration.step_graph(self._build(None))

    def _build(self, llm: openai.AsyncOpenAI | None) -> Agent[Any]:
        scenario = self._scenario
        model = None if llm is None else ByWord("m", llm)
        every = {
            name: Agent(name, instructions=system_prompt(name), model=model)
            for name in scenario.agents
        }
        for name, targets in scenario.choices.items():
            every[name].handoffs.extend(every[target] for target in targets)
        (entry,) = scenario.entries
        return every[entry]

    def _start(self, llm: openai.AsyncOpenAI) -> Agent[Any]:
        agent = self._build(llm)
        if self._client is not None:
            agent = integration.wrap(agent, client=self._client)
            self._wrapped.append(agent)
        return agent

    async def arun(self) -> object:
        async with client_of(self._url) as llm:
            return await Runner.run(self._start(llm), "Go on.")

    async def astream(self) -> AsyncIterator[object]:
        async with client_of(self._url) as llm:
            result = Runner.run_streamed(self._start(llm), "Go on.")
            try:
                async for event in result.stream_events():
                    yield event
            finally:
                result.cancel()

    def unwrap(self) -> AgentsProgram:
        for agent in self._wrapped:
            integration.unwrap(agent)
        return AgentsProgram(self._scenario, self._url, None)


class AgentsHarness(Harness):
    modes = (Mode.ASYNC, Mode.ASTREAM)

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> AgentsProgram:
        return AgentsProgram(scenario, url, client)

    def scenarios(self) -> Sequence[Scenario]:
        """A handoff is a choice always, so the kit's scenarios cannot be built."""
        return [
            Scenario(
                name="handoffs",
                edges=((START, "a"),),
                choices={"a": ("b", "c"), "b": ("a",), "c": ("d",)},
                script={"a": ("b", "c"), "b": ("a",), "c": ("d",)},
                before=steps("a1 b2 c2 d3"),
                moments=(
                    Moment.of("a", "a0 b1 c1 d2"),
                    Moment.of("b", "b0 a1 c2 d3"),
                    Moment.of("a", "a0 b1 c1 d2"),
                    Moment.of("c", "c0 d1"),
                    Moment.of("d", "d0"),
                ),
            ),
        ]


class TestOpenAIAgents(Conformance):
    harness = AgentsHarness()
