"""ag2's classic GroupChat passes the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autogen import ConversableAgent, GroupChat, GroupChatManager

from kvflow_integrations import ag2 as integration
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

Build = Callable[[Scenario, dict[str, Any]], GroupChatManager]


class ChatProgram(Program):
    """Agents remember their chats, so every run makes its own."""

    def __init__(
        self, build: Build, scenario: Scenario, url: str, client: Client | None
    ) -> None:
        self._arguments = (build, scenario, url)
        self._client = client
        self._wrapped: list[GroupChatManager] = []
        self.graph = integration.step_graph(self._manager())

    def _manager(self) -> GroupChatManager:
        build, scenario, url = self._arguments
        model = {"model": "m", "base_url": url, "api_key": "none", "max_retries": 1}
        return build(
            scenario,
            {"config_list": [{**model, "price": [0, 0]}], "cache_seed": None},
        )

    def _chat(self) -> dict[str, Any]:
        manager = self._manager()
        if self._client is not None:
            manager = integration.wrap(manager, client=self._client)
            self._wrapped.append(manager)
        return {"recipient": manager, "message": "Go on.", "silent": True}

    def run(self) -> object:
        return _user().initiate_chat(**self._chat())

    async def arun(self) -> object:
        return await _user().a_initiate_chat(**self._chat())

    def unwrap(self) -> ChatProgram:
        for manager in self._wrapped:
            integration.unwrap(manager)
        return ChatProgram(*self._arguments, None)


def _user() -> ConversableAgent:
    return ConversableAgent("user", llm_config=False, human_input_mode="NEVER")


def _agents(
    scenario: Scenario, model: dict[str, Any], *but: str
) -> dict[str, ConversableAgent]:
    return {
        name: ConversableAgent(
            name,
            system_message=system_prompt(name),
            llm_config=model,
            human_input_mode="NEVER",
        )
        for name in scenario.agents
        if name not in but
    }


class ChatHarness(Harness):
    modes = (Mode.SYNC, Mode.ASYNC)
    build_chat: Build

    def build(self, scenario: Scenario, url: str, client: Client | None) -> ChatProgram:
        return ChatProgram(type(self).build_chat, scenario, url, client)


def _round_robin(scenario: Scenario, model: dict[str, Any]) -> GroupChatManager:
    chat = GroupChat(
        list(_agents(scenario, model).values()),
        max_round=len(scenario.moments) + 1,
        speaker_selection_method="round_robin",
    )
    return GroupChatManager(chat, llm_config=model, silent=True)


class RoundRobinHarness(ChatHarness):
    build_chat = staticmethod(_round_robin)

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


def _auto(scenario: Scenario, model: dict[str, Any]) -> GroupChatManager:
    agents = _agents(scenario, model, "s")
    a, b, c = agents.values()
    chat = GroupChat(
        [a, b, c],
        max_round=len(scenario.moments) - 1,
        # After c comes a, and nobody is asked; after b and a somebody has to choose.
        allowed_or_disallowed_speaker_transitions={a: [a], b: [b], c: [c, b]},
        speaker_transitions_type="disallowed",
        select_speaker_message_template=system_prompt("s") + " {roles} {agentlist}",
    )
    return GroupChatManager(chat, llm_config=model, silent=True)


class AutoHarness(ChatHarness):
    build_chat = staticmethod(_auto)

    def agent(self, name: str) -> str:
        return "chat_manager" if name == "s" else name

    def scenarios(self) -> Sequence[Scenario]:
        return [
            Scenario(
                name="allowed transitions",
                edges=((START, "s"), ("a", "s"), ("b", "s"), ("c", "a")),
                choices={"s": ("a", "b", "c")},
                script={"s": ("b", "c")},
                before=steps("s1 a2 b2 c2"),
                moments=(
                    Moment.of("s", "s0 a1 b1 c1"),
                    Moment.of("b", "b0 s1 a2 c2"),
                    Moment.of("s", "s0 a1 b1 c1"),
                    Moment.of("c", "c0 a1 s2 b3"),
                    Moment.of("a", "a0 s1 b2 c2"),
                ),
            )
        ]


class TestAuto(Conformance):
    harness = AutoHarness()
