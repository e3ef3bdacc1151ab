"""What an adapter's tests provide: how scenarios are built and run in its framework."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterator, Sequence

from kvflow_sdk.client import Client
from kvflow_sdk.config import Config
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.run import Run
from kvflow_sdk.wire import StepUpdate

from .scenarios import SCENARIOS, Feature, Scenario

__all__ = ["Harness", "Mode", "Program", "WatchedClient"]


class Mode(enum.Enum):
    """A way to run a program to its end."""

    SYNC = "sync"
    ASYNC = "async"
    STREAM = "stream"
    ASTREAM = "astream"


class Program:
    """A scenario, built in a framework. Override the ways to run that there are."""

    graph: AgentStepGraph | None = None
    """What the adapter compiled before any run; None when it compiles nothing."""

    def run(self) -> object:
        """Once, to the end. What a node raises comes out."""
        raise NotImplementedError

    async def arun(self) -> object:
        raise NotImplementedError

    def stream(self) -> Iterator[object]:
        """Gives something while the run goes on, at least once per agent."""
        raise NotImplementedError

    def astream(self) -> AsyncIterator[object]:
        raise NotImplementedError

    def unwrap(self) -> Program:
        """The program as it was before the adapter touched it. May be called twice."""
        raise NotImplementedError


class Harness:
    """How scenarios are built in one framework."""

    features: frozenset[Feature] = frozenset(Feature)
    """What the framework can express; other scenarios are left out."""
    modes: Sequence[Mode] = tuple(Mode)
    """The first one is used where any will do."""
    ignored: frozenset[str] = frozenset()
    """Names that the adapter reports besides the scenario's agents."""
    server_key: str | None = None
    """The API key of the server at `kvflow_url`, if it has one."""

    def scenarios(self) -> Sequence[Scenario]:
        """Those that the framework can express. A framework with a fixed shape has
        scenarios of its own."""
        return [each for each in SCENARIOS if each.needs <= self.features]

    def agent(self, name: str) -> str:
        """What the scenario's agent `name` is called on the wire."""
        return name

    def build(self, scenario: Scenario, url: str, client: Client | None) -> Program:
        """`scenario` as a program of this framework.

        Every agent is one call of the framework's own LLM client to the OpenAI server
        at `url` (with ``/v1``), without a proxy and with one retry; its prompt begins
        with `stage.system_prompt`, and its answer decides what `Scenario.next_of` says.
        `client` is what the adapter shall use; None: build it without any KVFlow.
        """
        raise NotImplementedError


class WatchedClient(Client):
    """A client that keeps what its runs report; it sends it as well."""

    def __init__(self, server: str) -> None:
        super().__init__(server, config=Config(timeout=30.0, flush=10.0))
        self.runs: list[Run] = []
        self.reports: dict[str, list[StepUpdate]] = {}
        """By run."""

    def start_run(self, graph: AgentStepGraph | None = None) -> Run:
        run = super().start_run(graph)
        self.runs.append(run)
        self.reports[run.id] = [run.snapshot()]
        run.listen(self._heard)
        return run

    def _heard(self, update: StepUpdate) -> None:
        self.reports[update.run].append(update)
