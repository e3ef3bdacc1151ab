"""SGLang's front-end language passes the conformance kit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import sglang as sgl

import kvflow_sdk as kvflow
from kvflow_integrations import sglang_lang
from kvflow_integrations.conformance import (
    Conformance,
    Course,
    Feature,
    Harness,
    Mode,
    Program,
    Scenario,
    system_prompt,
)
from kvflow_sdk.client import Client
from kvflow_sdk.context import current_scope
from kvflow_sdk.graph import Node

if TYPE_CHECKING:
    from conftest import Server

# SGLang warns from the thread in which a call fails.
pytestmark = pytest.mark.filterwarnings("ignore:Error in stream_executor")


class SglProgram(Program):
    """A pipeline in Python that runs one ``@sgl.function`` per agent."""

    announces = False

    def __init__(self, scenario: Scenario, url: str, client: Client | None) -> None:
        self.scenario, self.url, self.client = scenario, url, client
        self.functions = {name: _function(name) for name in scenario.agents}
        if client is not None:
            self.graph = scenario_graph(scenario)
        self._lock = threading.Lock()
        self._endpoint: Any = None

    def run(self) -> object:
        for _ in self._tracked(stream=False):
            pass
        return None

    def stream(self) -> Iterator[object]:
        return self._tracked(stream=True)

    def unwrap(self) -> SglProgram:
        plain = type(self)(self.scenario, self.url, None)
        plain._endpoint = sglang_lang.unwrap(self._endpoint)
        return plain

    def _tracked(self, *, stream: bool) -> Iterator[object]:
        if self.client is None:
            return self._play(stream)
        return kvflow.workflow(self.graph, client=self.client)(self._play)(stream)

    def _play(self, stream: bool) -> Iterator[object]:
        backend = self._backend()
        course = Course(self.scenario)

        def call(name: str) -> Any:
            return self.functions[name].run(backend=backend, stream=stream)

        while course.turn:
            run = current_scope().run
            if self.announces and run is not None:
                run.superstep(*course.turn)
            # Lazily: all of them are running before the first answer is read.
            states = [(name, call(name)) for name in course.turn]
            answers = []
            for name, state in states:
                if stream:
                    yield from state.text_iter()
                if state.error() is not None:
                    state = call(name)
                    if state.error() is not None:
                        raise state.error()
                answers.append((name, state["answer"]))
            course.done(answers)

    def _backend(self) -> Any:
        with self._lock:
            if self._endpoint is None:
                endpoint = sgl.RuntimeEndpoint(self.url.removesuffix("/v1"))
                if self.client is not None:
                    endpoint = kvflow.wrap(endpoint, client=self.client)
                self._endpoint = endpoint
            return self._endpoint


def _function(name: str) -> Any:
    def function(s: Any) -> None:
        s += f"{system_prompt(name)} Go on.\n"
        s += sgl.gen("answer", max_tokens=2, temperature=0)

    function.__name__ = name
    return sgl.function(function)


def scenario_graph(scenario: Scenario) -> kvflow.AgentStepGraph:
    nodes = tuple(Node(name) for name in scenario.agents)
    return kvflow.AgentStepGraph(nodes, tuple(scenario.groups))


class SglHarness(Harness):
    # An agent that runs for two reasons at different times has to be announced.
    features = frozenset(Feature) - {Feature.RERUN}
    # The language has no coroutines.
    modes = (Mode.SYNC, Mode.STREAM)

    def build(self, scenario: Scenario, url: str, client: Client | None) -> SglProgram:
        return SglProgram(scenario, url, client)


class AnnouncingProgram(SglProgram):
    announces = True


class AnnouncingHarness(SglHarness):
    features = frozenset(Feature)

    def scenarios(self) -> Sequence[Scenario]:
        every = super().scenarios()
        return [s for s in every if not s.needs or Feature.RERUN in s.needs]

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> AnnouncingProgram:
        return AnnouncingProgram(scenario, url, client)


class TestSglFunction(Conformance):
    harness = SglHarness()


class TestSglFunctionThatAnnounces(Conformance):
    harness = AnnouncingHarness()


@pytest.fixture
def kvflow_url(server: Server) -> str:
    for harness in (SglHarness, AnnouncingHarness):
        harness.server_key = server.key
    return server.url
