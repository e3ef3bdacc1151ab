"""Plain Python passes the conformance kit: functions, threads, tasks and generators.

The programs say nothing but ``with kvflow.workflow(graph)`` and ``kvflow.step(name)``:
what a start means for the others is inferred from the graph. An agent that runs for two
reasons at different times has to be announced, and then the run says all of its turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

import kvflow_sdk as kvflow
from kvflow_integrations.conformance import (
    Conformance,
    Course,
    Feature,
    Harness,
    Program,
    Scenario,
    messages,
)
from kvflow_sdk.client import Client
from kvflow_sdk.context import current_scope


class PlainProgram(Program):
    announces = False

    def __init__(self, scenario: Scenario, url: str, client: Client | None) -> None:
        self.scenario, self.url, self.client = scenario, url, client
        kind, akind = openai.OpenAI, openai.AsyncOpenAI
        if client is not None:
            kind, akind = kvflow.OpenAI, kvflow.AsyncOpenAI
            self.graph = _graph(scenario)
        settings: Any = {"base_url": url, "api_key": "none", "max_retries": 1}
        # Loading certificates costs more than a call, and loopback needs none.
        http, ahttp = openai.DefaultHttpxClient, openai.DefaultAsyncHttpxClient
        self._llm = lambda: kind(**settings, http_client=http(verify=False))
        self._async_llm = lambda: akind(**settings, http_client=ahttp(verify=False))

    def run(self) -> object:
        for _ in self.stream():
            pass
        return None

    async def arun(self) -> object:
        async for _ in self.astream():
            pass
        return None

    def stream(self) -> Iterator[object]:
        return self._tracked(self._stream)()

    def astream(self) -> AsyncIterator[object]:
        return self._tracked(self._astream)()

    def unwrap(self) -> PlainProgram:
        return type(self)(self.scenario, self.url, None)

    def _tracked(self, function: Callable[[], Any]) -> Callable[[], Any]:
        if self.client is None:
            return function
        return kvflow.workflow(self.graph, client=self.client)(function)

    def _stream(self) -> Iterator[object]:
        course = Course(self.scenario)
        while course.turn:
            self._announce(course.turn)
            with ThreadPoolExecutor(len(course.turn)) as pool:
                answers = list(pool.map(kvflow.bind(self._call), course.turn))
            yield from answers
            course.done(answers)

    async def _astream(self) -> AsyncIterator[object]:
        course = Course(self.scenario)
        async with self._async_llm() as llm:
            while course.turn:
                self._announce(course.turn)
                calls = [self._acall(llm, name) for name in course.turn]
                answers = await asyncio.gather(*calls)
                for answer in answers:
                    yield answer
                course.done(answers)

    def _announce(self, turn: list[str]) -> None:
        run = current_scope().run
        if self.announces and run is not None:
            run.superstep(*turn)

    def _call(self, name: str) -> tuple[str, str]:
        def call() -> tuple[str, str]:
            with self._llm() as llm:
                chat = llm.chat.completions.create(
                    model="default",
                    messages=messages(name),  # type: ignore[arg-type]
                )
            return name, chat.choices[0].message.content or ""

        return self._agent(name)(call)()

    async def _acall(self, llm: openai.AsyncOpenAI, name: str) -> tuple[str, str]:
        async def call() -> tuple[str, str]:
            chat = await llm.chat.completions.create(
                model="default",
                messages=messages(name),  # type: ignore[arg-type]
            )
            return name, chat.choices[0].message.content or ""

        return await self._agent(name)(call)()

    def _agent(self, name: str) -> Callable[[Any], Any]:
        if self.client is None:
            return lambda function: function
        return kvflow.agent(name, client=self.client)


def _graph(scenario: Scenario) -> kvflow.AgentStepGraph:
    builder = kvflow.GraphBuilder()
    for name in scenario.agents:
        builder.add_node(name)
    for source, target in scenario.edges:
        builder.add_edge(source, target)
    for sources, target in scenario.barriers:
        builder.add_barrier(sources, target)
    for source, targets in scenario.choices.items():
        for target in targets:
            builder.add_edge(source, target, conditional=True)
    return builder.build()


class PlainHarness(Harness):
    # One agent that runs for two reasons at different times has to be announced.
    features = frozenset(Feature) - {Feature.RERUN}

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> PlainProgram:
        return PlainProgram(scenario, url, client)


class AnnouncingProgram(PlainProgram):
    announces = True


class AnnouncingHarness(Harness):
    def scenarios(self) -> Sequence[Scenario]:
        every = super().scenarios()
        return [s for s in every if not s.needs or Feature.RERUN in s.needs]

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> AnnouncingProgram:
        return AnnouncingProgram(scenario, url, client)


class TestPlainPython(Conformance):
    harness = PlainHarness()


class TestPlainPythonThatAnnounces(Conformance):
    harness = AnnouncingHarness()
