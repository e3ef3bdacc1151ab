"""AutoGen's teams pass the conformance kit, each with what it can express."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_agentchat.teams import (
    BaseGroupChat,
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

from kvflow_integrations import autogen as integration
from kvflow_integrations.conformance import (
    Conformance,
    Feature,
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

from .test_teams import INFO

MAX_TURNS = 30
Build = Callable[[Scenario, ChatCompletionClient], BaseGroupChat]


class TeamProgram(Program):
    """A team runs once at a time, so every run makes its own, as a web server would."""

    def __init__(
        self, build: Build, scenario: Scenario, url: str, client: Client | None
    ) -> None:
        self._arguments = (build, scenario, url)
        self._build = build
        self._scenario = scenario
        self._url = url
        self._client = client
        self._wrapped: list[BaseGroupChat] = []
        self.graph = integration.step_graph(build(scenario, self._model()))

    def _model(self) -> OpenAIChatCompletionClient:
        return OpenAIChatCompletionClient(
            model="m",  # what the stage says it is; AutoGen warns otherwise
            base_url=self._url,
            api_key="none",
            max_retries=1,
            model_info=INFO,
        )

    async def arun(self) -> object:
        # Cancelling the task alone makes AutoGen finish the conversation first.
        token = CancellationToken()
        task = asyncio.ensure_future(self._drained(token))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            token.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise

    async def _drained(self, token: CancellationToken) -> object:
        async for message in self.astream(token):
            last = message
        return last

    async def astream(
        self, token: CancellationToken | None = None
    ) -> AsyncIterator[object]:
        model = self._model()
        team = self._build(self._scenario, model)
        if self._client is not None:
            team = integration.wrap(team, client=self._client)
            self._wrapped.append(team)
        try:
            stream = team.run_stream(task="Go on.", cancellation_token=token)
            async with aclosing(stream) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        finally:
            await model.close()

    def unwrap(self) -> TeamProgram:
        for team in self._wrapped:
            integration.unwrap(team)
        return TeamProgram(*self._arguments, None)


class TeamHarness(Harness):
    modes = (Mode.ASYNC, Mode.ASTREAM)
    build_team: Build

    def build(self, scenario: Scenario, url: str, client: Client | None) -> TeamProgram:
        return TeamProgram(type(self).build_team, scenario, url, client)


def _assistants(
    scenario: Scenario, model: ChatCompletionClient, *but: str
) -> dict[str, AssistantAgent]:
    return {
        name: AssistantAgent(name, model, system_message=system_prompt(name))
        for name in scenario.agents
        if name not in but
    }


def _graph_flow(scenario: Scenario, model: ChatCompletionClient) -> BaseGroupChat:
    agents = _assistants(scenario, model)
    builder = DiGraphBuilder()
    for agent in agents.values():
        builder.add_node(agent)
    for source, target in scenario.edges:
        if source != START:
            group = f"{source} to {target}"
            builder.add_edge(agents[source], agents[target], activation_group=group)
    for sources, target in scenario.barriers:
        for source in sources:
            builder.add_edge(agents[source], agents[target], activation_group="all")
    for source, targets in scenario.choices.items():
        for target in targets:
            builder.add_edge(
                agents[source],
                agents[target],
                _chooses(scenario, source, target),
                activation_group=f"{source} to {target}",
            )
    (entry,) = scenario.entries
    builder.set_entry_point(agents[entry])
    return GraphFlow(list(agents.values()), builder.build(), max_turns=MAX_TURNS)


def _chooses(
    scenario: Scenario, source: str, target: str
) -> Callable[[BaseChatMessage], bool]:
    return lambda message: target in scenario.next_of(source, message.to_text())


class GraphFlowHarness(TeamHarness):
    features = frozenset(Feature) - {Feature.FAN_OUT}
    build_team = staticmethod(_graph_flow)


class TestGraphFlow(Conformance):
    harness = GraphFlowHarness()


def _round_robin(scenario: Scenario, model: ChatCompletionClient) -> BaseGroupChat:
    agents = list(_assistants(scenario, model).values())
    return RoundRobinGroupChat(list(agents), max_turns=len(scenario.moments))


class RoundRobinHarness(TeamHarness):
    build_team = staticmethod(_round_robin)

    def scenarios(self) -> Sequence[Scenario]:
        return [
            Scenario(
                name="round robin",
                edges=((START, "a"), ("a", "b"), ("b", "c"), ("c", "a")),
                before=steps("a1 b2 c3"),
                moments=(
                    Moment.of("a", "a0 b1 c2"),
                    Moment.of("b", "b0 c1 a2"),
                    Moment.of("c", "c0 a1 b2"),
                    Moment.of("a", "a0 b1 c2"),
                ),
            )
        ]


class TestRoundRobin(Conformance):
    harness = RoundRobinHarness()


def _selector(scenario: Scenario, model: ChatCompletionClient) -> BaseGroupChat:
    agents = list(_assistants(scenario, model, "s").values())
    return SelectorGroupChat(
        list(agents),
        model,
        selector_prompt=system_prompt("s") + "\n{roles}\n{history}\n{participants}",
        max_turns=len(scenario.moments) // 2,
    )


class SelectorHarness(TeamHarness):
    build_team = staticmethod(_selector)

    def agent(self, name: str) -> str:
        return "SelectorGroupChat" if name == "s" else name

    def scenarios(self) -> Sequence[Scenario]:
        return [
            Scenario(
                name="selector",
                edges=((START, "s"), ("a", "s"), ("b", "s"), ("c", "s")),
                choices={"s": ("a", "b", "c")},
                script={"s": ("c", "a")},
                before=steps("s1 a2 b2 c2"),
                moments=(
                    Moment.of("s", "s0 a1 b1 c1"),
                    Moment.of("c", "c0 s1 a2 b2"),
                    Moment.of("s", "s0 a1 b1 c1"),
                    Moment.of("a", "a0 s1 b2 c2"),
                ),
            )
        ]


class TestSelector(Conformance):
    harness = SelectorHarness()


class _HandsOver(BaseChatAgent):
    """Hands over to whom its model names; the kit's model cannot call tools."""

    def __init__(
        self, name: str, model: ChatCompletionClient, targets: Sequence[str]
    ) -> None:
        super().__init__(name, "hands over")
        self._model_client = model
        self._handoffs = {target: _Target(target) for target in targets}

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage, HandoffMessage)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: Any
    ) -> Response:
        prompt = SystemMessage(content=system_prompt(self.name))
        request = UserMessage(content="Go on.", source="user")
        reply = await self._model_client.create(
            [prompt, request], cancellation_token=cancellation_token
        )
        text = str(reply.content)
        said: BaseChatMessage = TextMessage(content=text, source=self.name)
        if text in self._handoffs:
            said = HandoffMessage(content=text, source=self.name, target=text)
        return Response(chat_message=said)

    async def on_reset(self, cancellation_token: Any) -> None:
        pass


class _Target:
    def __init__(self, target: str) -> None:
        self.target = target


def _swarm(scenario: Scenario, model: ChatCompletionClient) -> BaseGroupChat:
    agents = [
        _HandsOver(name, model, [t for t in scenario.choices[name] if t != name])
        for name in scenario.agents
    ]
    return Swarm(list(agents), max_turns=len(scenario.moments))


class SwarmHarness(TeamHarness):
    build_team = staticmethod(_swarm)

    def scenarios(self) -> Sequence[Scenario]:
        return [
            Scenario(
                name="swarm",
                edges=((START, "a"),),
                # Whoever does not hand over goes on.
                choices={"a": ("a", "b", "c"), "b": ("b", "a"), "c": ("c",)},
                script={"a": ("b", "fine", "c"), "b": ("a",), "c": ("fine",)},
                before=steps("a1 b2 c2"),
                moments=(
                    Moment.of("a", "a0 b1 c1"),
                    Moment.of("b", "b0 a1 c2"),
                    Moment.of("a", "a0 b1 c1"),
                    Moment.of("a", "a0 b1 c1"),
                    Moment.of("c", "c0"),
                ),
            )
        ]


class TestSwarm(Conformance):
    harness = SwarmHarness()
