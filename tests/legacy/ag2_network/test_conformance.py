"""Workflows on a hub of ag2 1.x pass the conformance kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ag2.network import (
    AgentTarget,
    FromSpeaker,
    Hub,
    ToolCalled,
    Transition,
    TransitionGraph,
)

from kvflow_integrations import ag2_network as integration
from kvflow_integrations.conformance import (
    SCENARIOS,
    Conformance,
    Harness,
    Mode,
    Moment,
    Program,
    Scenario,
    steps,
)
from kvflow_sdk.client import Client
from kvflow_sdk.graph import START, AgentStepGraph

from .conftest import Ending, Network, opened_hub

Shape = Callable[[Network, Scenario], TransitionGraph]


class NetworkProgram(Program):
    """Every run has a hub of its own, because it has an event loop of its own."""

    shape: Shape
    opener = "user"
    tools: dict[str, Sequence[Callable[..., Any]]] = {}  # noqa: RUF012

    def __init__(self, scenario: Scenario, url: str, client: Client | None) -> None:
        self._arguments = (scenario, url)
        self._client = client
        self._wrapped: list[Hub] = []
        self.graph = asyncio.run(self._declared())

    def _network(self, hub: Hub) -> Any:
        scenario, url = self._arguments
        return Network.on(hub, url, scenario.agents, self.tools)

    async def _channel(self, network: Network) -> Any:
        graph = type(self).shape(network, self._arguments[0])
        return await network.open(graph, self.opener)

    async def _declared(self) -> AgentStepGraph | None:
        async with opened_hub() as hub, self._network(hub) as network:
            return integration.step_graph(await self._channel(network))

    async def arun(self) -> object:
        async with opened_hub() as hub, self._network(hub) as network:
            if self._client is not None:
                self._wrapped.append(integration.wrap(hub, client=self._client))
            ending = Ending()
            hub.register_listener(ending)
            channel = await self._channel(network)
            await channel.send("Go on.")
            try:
                await ending.wait()
            finally:
                await channel.close()
            return None

    def unwrap(self) -> NetworkProgram:
        for hub in self._wrapped:
            integration.unwrap(hub)
        return type(self)(*self._arguments, None)


def _sequence(network: Network, scenario: Scenario) -> TransitionGraph:
    return TransitionGraph.sequence(
        [network.id(name) for name in ("user", *scenario.agents)]
    )


class SequenceProgram(NetworkProgram):
    shape = staticmethod(_sequence)


def _round_robin(network: Network, scenario: Scenario) -> TransitionGraph:
    """a begins, in words of the program; the person, who opened it, is past the end."""
    graph = TransitionGraph.round_robin(
        [network.id(name) for name in "abc"], max_turns=len(scenario.moments) + 1
    )
    back = Transition(
        when=FromSpeaker(network.id("c")), then=AgentTarget(graph.initial_speaker)
    )
    graph.transitions.insert(0, back)
    return graph


class RoundRobinProgram(NetworkProgram):
    shape = staticmethod(_round_robin)
    opener = "a"


def to_b() -> str:
    """Give the word to b."""
    return "Done."


def to_c() -> str:
    """Give the word to c."""
    return "Done."


def _tools(network: Network, scenario: Scenario) -> TransitionGraph:
    a, b, c = (network.id(name) for name in "abc")
    return TransitionGraph(
        network.id("user"),
        [
            # A tool leads on from whoever calls it; here only a has any.
            Transition(when=ToolCalled("to_b"), then=AgentTarget(b)),
            Transition(when=ToolCalled("to_c"), then=AgentTarget(c)),
            Transition(when=FromSpeaker(network.id("user")), then=AgentTarget(a)),
            Transition(when=FromSpeaker(b), then=AgentTarget(a)),
        ],
    )


class ToolsProgram(NetworkProgram):
    shape = staticmethod(_tools)
    tools = {"a": (to_b, to_c)}  # noqa: RUF012


SCENARIOS_BY_PROGRAM = {
    SequenceProgram: next(each for each in SCENARIOS if each.name == "sequence"),
    RoundRobinProgram: Scenario(
        name="round robin",
        edges=((START, "b"), ("b", "c"), ("c", "a"), ("a", "b")),
        before=steps("b1 c2 a3"),
        moments=(
            Moment.of("b", "b0 c1 a2"),
            Moment.of("c", "c0 a1 b2"),
            Moment.of("a", "a0 b1 c2"),
            Moment.of("b", "b0 c1 a2"),
        ),
    ),
    ToolsProgram: Scenario(
        name="tools that give the word on",
        edges=((START, "a"), ("b", "a")),
        choices={"a": ("b", "c")},
        # A turn goes on after a tool with a second call of the model.
        script={"a": ("->to_b", "fine", "->to_c", "fine")},
        before=steps("a1 b2 c2"),
        moments=(
            *(Moment.of("a", "a0 b1 c1"),) * 2,
            Moment.of("b", "b0 a1 c2"),
            *(Moment.of("a", "a0 b1 c1"),) * 2,
            Moment.of("c", "c0"),
        ),
    ),
}


class NetworkHarness(Harness):
    modes = (Mode.ASYNC,)

    def scenarios(self) -> Sequence[Scenario]:
        return list(SCENARIOS_BY_PROGRAM.values())

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> NetworkProgram:
        (program,) = (p for p, s in SCENARIOS_BY_PROGRAM.items() if s is scenario)
        return program(scenario, url, client)


class TestNetwork(Conformance):
    harness = NetworkHarness()
