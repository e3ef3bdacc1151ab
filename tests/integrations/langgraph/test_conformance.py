"""LangGraph passes the conformance kit."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import END, StateGraph
from langgraph.types import Send
from pydantic import SecretStr

from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import (
    Conformance,
    Harness,
    Program,
    Scenario,
    messages,
)
from kvflow_sdk.client import Client


class State(TypedDict):
    answers: Annotated[dict[str, str], operator.or_]


class LangGraphProgram(Program):
    def __init__(self, app: Any) -> None:
        self.app = app
        self.graph = integration.step_graph(app)

    def run(self) -> object:
        return self.app.invoke({"answers": {}})

    async def arun(self) -> object:
        return await self.app.ainvoke({"answers": {}})

    def stream(self) -> Iterator[object]:
        chunks: Iterator[object] = self.app.stream({"answers": {}})
        return chunks

    def astream(self) -> AsyncIterator[object]:
        chunks: AsyncIterator[object] = self.app.astream({"answers": {}})
        return chunks

    def unwrap(self) -> LangGraphProgram:
        return LangGraphProgram(integration.unwrap(self.app))


class LangGraphHarness(Harness):
    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> LangGraphProgram:
        llm = ChatOpenAI(
            base_url=url, api_key=SecretStr("none"), model="default", max_retries=1
        )
        builder = StateGraph(State)
        for name in scenario.agents:
            builder.add_node(name, _node(name, llm))
        for source, target in scenario.edges:
            builder.add_edge(source, target)
        for sources, target in scenario.barriers:
            builder.add_edge(list(sources), target)
        for source, targets in scenario.choices.items():
            route = _router(scenario, source)
            builder.add_conditional_edges(source, route, [*targets, END])
        app = builder.compile()
        if client is None:
            return LangGraphProgram(app)
        return LangGraphProgram(integration.wrap(app, client=client))


def _node(name: str, llm: ChatOpenAI) -> Any:
    def node(state: State) -> dict[str, Any]:
        answer = llm.invoke(messages(name))
        return {"answers": {name: str(answer.content)}}

    async def anode(state: State) -> dict[str, Any]:
        answer = await llm.ainvoke(messages(name))
        return {"answers": {name: str(answer.content)}}

    return RunnableLambda(node, anode)


def _router(scenario: Scenario, source: str) -> Any:
    def route(state: State) -> Any:
        chosen = scenario.next_of(source, state["answers"][source])
        if len(chosen) > 1:
            return [Send(name, state) for name in chosen]
        return chosen[0] if chosen else END

    return route


class TestLangGraph(Conformance):
    harness = LangGraphHarness()
