"""Agents that `create_agent` makes, as nodes of a graph, with middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelRequest,
    SummarizationMiddleware,
)
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import Loopback, Seen, WatchedClient


class Talk(Loopback):
    """Answers by a list, then with "fine"."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        super().__init__()

    def complete(self, request: Seen) -> tuple[int, str]:
        return 200, self.said.pop(0) if self.said else "fine"


class Loud(AgentMiddleware):
    """Has a node of its own before the model, and stands around its call."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str | None] = []

    def before_model(self, state: Any, runtime: Any) -> None:
        self._note()

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Any]
    ) -> Any:
        self._note()
        return handler(request)

    def _note(self) -> None:
        call = kvflow.current()
        self.noted.append(call and call.agent)


def look(place: str = "here") -> str:
    """Look around."""
    return "nothing"


def run(server: Talk, middleware: Any, history: int = 1) -> list[Any]:
    """What the calls said of a → b, both made by `create_agent`."""
    llm: Any = ChatOpenAI(base_url=server.url, api_key="k", model="m", max_retries=0)  # type: ignore[arg-type]
    builder = StateGraph(MessagesState)
    for name in "ab":
        agent = create_agent(
            llm,
            tools=[look],
            name=name,
            middleware=middleware(llm) if name == "a" else [],
        )
        builder.add_node(name, agent)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    with WatchedClient(server.url) as client:
        app = kvflow.wrap(builder.compile(), client=client)
        words = [{"role": "user", "content": f"Word {n}."} for n in range(history)]
        app.invoke({"messages": words})
        integration.unwrap(app)
    calls = server.at("/chat/completions")
    return [(u.agent, u.steps) for call in calls for u in call.updates]


def test_an_agent_with_middleware_is_one_agent_through_its_loop() -> None:
    loud = Loud()
    with Talk("->look", "done") as server:
        said = run(server, lambda llm: [loud])
        assert len(server.at("/chat/completions")) == len(said)
    assert said == [
        ("a", {"a": 0, "b": 1}),
        ("a", {"a": 0, "b": 1}),
        ("b", {"b": 0}),
    ]
    assert loud.noted == ["a"] * 4


def test_a_call_that_middleware_makes_is_one_of_the_agents() -> None:
    now: dict[str, Any] = {"trigger": ("messages", 4), "keep": ("messages", 2)}
    before: dict[str, Any] = {"max_tokens_before_summary": 1, "messages_to_keep": 2}
    named = inspect.signature(SummarizationMiddleware).parameters

    def summarizing(llm: Any) -> list[Any]:
        settings = now if now.keys() <= named.keys() else before
        return [SummarizationMiddleware(model=llm, **settings)]

    with Talk("a summary") as server:
        said = run(server, summarizing, history=6)
        assert len(server.at("/chat/completions")) == len(said) == 3
    assert [agent for agent, _ in said] == ["a", "a", "b"]
