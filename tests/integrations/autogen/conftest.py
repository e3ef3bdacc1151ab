"""Agents that note who they are, and the steps that hold while they speak."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow

import kvflow_sdk as kvflow
from kvflow_integrations import autogen as integration
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config
from kvflow_sdk.context import current
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.run import Run
from kvflow_sdk.wire import StepUpdate

Moment = tuple[str, dict[str, int] | None]


class RecordingClient(Client):
    """A client without servers that keeps every snapshot."""

    def __init__(self) -> None:
        super().__init__(config=Config())
        self.updates: list[StepUpdate] = []
        self.runs: list[Run] = []

    def start_run(self, graph: AgentStepGraph | None = None, **_: Any) -> Run:
        self.runs.append(Run(graph, client=self.id, listener=self.updates.append))
        return self.runs[-1]


class Noting(BaseChatAgent):
    """Speaks its answers one after another, the last one for ever.

    "-> x" hands over to x. `action` runs before it notes.
    """

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        *answers: str,
        action: Callable[[], Awaitable[object]] | None = None,
        handoffs: Sequence[str] = (),
    ) -> None:
        super().__init__(name, f"the agent {name}")
        self._recorder = recorder
        self._answers = list(answers) or ["fine"]
        self._action = action
        # What Swarm and the topology look at, as in an AssistantAgent.
        self._handoffs = {target: _Handoff(target) for target in handoffs}

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage, HandoffMessage)

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: Any
    ) -> Response:
        if self._action is not None:
            await self._action()
        await asyncio.sleep(0)
        self._recorder.note()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        said: BaseChatMessage = TextMessage(content=answer, source=self.name)
        if answer.startswith("-> "):
            target = answer.removeprefix("-> ")
            said = HandoffMessage(content=answer, source=self.name, target=target)
        return Response(chat_message=said)

    async def on_reset(self, cancellation_token: Any) -> None:
        pass


class _Handoff:
    def __init__(self, target: str) -> None:
        self.target = target


class Recorder:
    def __init__(self) -> None:
        self.client = RecordingClient()
        self.seen: list[Moment] = []
        self.wrapped: list[Any] = []

    def note(self) -> None:
        call = current()
        assert call is not None, "no agent is current while it speaks"
        self.seen.append((call.agent, call.run.snapshot().steps))

    def agent(self, name: str, *answers: str, **settings: Any) -> Noting:
        return Noting(self, name, *answers, **settings)

    def wrap(self, app: Any, **settings: Any) -> Any:
        self.wrapped.append(kvflow.wrap(app, client=self.client, **settings))
        return self.wrapped[-1]

    async def run(self, app: Any, **settings: Any) -> Any:
        """Run `app` once, wrapped, and check that its run came to an end."""
        result = await self.wrap(app, **settings).run(task="Go.")
        assert self.client.runs[-1].finished
        assert self.errors == {}
        return result

    @property
    def errors(self) -> dict[str, int]:
        counts = self.client.counters.as_dict()
        return {name: n for name, n in counts.items() if name.startswith("error.")}

    def flow(
        self,
        edges: str,
        *,
        start: str = "",
        answers: dict[str, Sequence[str]] | None = None,
        actions: dict[str, Callable[[], Awaitable[object]]] | None = None,
        **settings: Any,
    ) -> GraphFlow:
        """A GraphFlow of one-letter agents.

        ``"a-b"`` is an edge; ``"a-b?x"`` one that holds when a says x; ``"a-c/g"`` one
        of the activation group g, ``"a-c|g"`` of one in which any will do.
        """
        names = sorted({letter for edge in edges.split() for letter in edge[:3:2]})
        agents = {
            name: self.agent(
                name,
                *(answers or {}).get(name, ()),
                action=(actions or {}).get(name),
            )
            for name in names
        }
        builder = DiGraphBuilder()
        for agent in agents.values():
            builder.add_node(agent)
        for edge in edges.split():
            source, target, rest = edge[0], edge[2], edge[3:]
            rest, _, word = rest.partition("?")
            builder.add_edge(
                agents[source],
                agents[target],
                _says(word) if word else None,
                activation_group=f"{target}{rest[1:]}" if rest else target,
                activation_condition="any" if rest.startswith("|") else "all",
            )
        if start:
            builder.set_entry_point(agents[start])
        return GraphFlow(list(agents.values()), builder.build(), **settings)


def _says(word: str) -> Callable[[BaseChatMessage], bool]:
    return lambda message: word in message.to_text().split()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    for app in recorder.wrapped:
        integration.unwrap(app)
