"""Workflows on a hub of ag2 1.x, and what it takes to run one to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import (
    AgentClient,
    BaseHubListener,
    Channel,
    Hub,
    HubClient,
    HumanClient,
    LocalLink,
    Passport,
    TransitionGraph,
)

from kvflow_integrations.conformance import system_prompt

__all__ = ["Ending", "Network", "opened_hub"]


class Ending(BaseHubListener):
    """Knows when the workflow is closed or a turn has failed."""

    def __init__(self) -> None:
        self._over: asyncio.Future[BaseException | None] = asyncio.Future()

    async def on_channel_event(self, channel_id: str, kind: str, payload: Any) -> None:
        if kind != "closed" or payload["metadata"].manifest.type != "workflow":
            return
        if not self._over.done():
            self._over.set_result(None)

    async def on_turn_failed(
        self, channel_id: str, agent_id: str, envelope_id: str, exc: BaseException
    ) -> None:
        if not self._over.done():
            self._over.set_result(exc)

    async def wait(self) -> None:
        """Raises what the turn raised."""
        error = await self._over
        if error is not None:
            raise error


@asynccontextmanager
async def opened_hub() -> AsyncIterator[Hub]:
    hub = await Hub.open(
        MemoryKnowledgeStore(), ttl_sweep_interval=0, expectation_sweep_interval=0
    )
    try:
        yield hub
    finally:
        await hub.close()


@dataclass
class Network:
    """A person and some agents on a hub; the agents' models are at `url`."""

    hub: Hub
    url: str
    http: Any
    user: HumanClient
    agents: dict[str, AgentClient]

    @classmethod
    @asynccontextmanager
    async def on(
        cls,
        hub: Hub,
        url: str,
        names: Sequence[str],
        tools: dict[str, Sequence[Callable[..., Any]]] | None = None,
    ) -> AsyncIterator[Network]:
        people = HubClient(LocalLink(hub))
        user = await people.register_human(Passport(name="user"))
        async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
            config = OpenAIConfig(
                model="m", base_url=url, api_key="none", max_retries=1, http_client=http
            )
            agents = {}
            for name in names:
                agent = Agent(
                    name,
                    system_prompt(name),
                    config=config,
                    tools=(tools or {}).get(name, ()),
                )
                # Without the tools and the ids that make two programs' calls differ.
                agents[name] = await hub.register(agent, attach_plugin=False)
            try:
                yield cls(hub, url, http, user, agents)
            finally:
                await people.close()

    def id(self, name: str) -> str:
        return self.user.agent_id if name == "user" else self.agents[name].agent_id

    async def open(self, graph: TransitionGraph, by: str = "user") -> Channel:
        owner: Any = self.user if by == "user" else self.agents[by]
        return await owner.open(
            type="workflow",
            target=[name for name in (*self.agents, "user") if name != by],
            knobs={"graph": graph.to_dict()},
        )
