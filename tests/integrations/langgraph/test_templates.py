"""LangChain's prompt templates say where their first variable stands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import Loopback
from kvflow_integrations.templates import Beginning, beginning_of
from kvflow_sdk.client import Client
from kvflow_sdk.wire import FixedMark

LITERAL = "You plan {{carefully}}."
ENDS_IN_A_MESSAGE = ChatPromptTemplate.from_messages(
    [("system", LITERAL), ("user", "Question: {question} Answer:")]
)


class State(TypedDict):
    question: str


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback(kvflow=False) as server:
        yield server


def marks(server: Loopback, node: Any, *, asynchronous: bool = False) -> list[Any]:
    """What each call of `node`, in a graph of its own, said of its fixed part."""
    builder = StateGraph(State)
    builder.add_node("planner", node)
    builder.add_edge(START, "planner")
    builder.add_edge("planner", END)
    with Client(server.url) as client:
        app = kvflow.wrap(builder.compile(), client=client)
        try:
            if asynchronous:
                asyncio.run(app.ainvoke({"question": "gold?"}))
            else:
                app.invoke({"question": "gold?"})
        finally:
            integration.unwrap(app)
    calls = server.at("/chat/completions")
    return [update.fixed for call in calls for update in call.updates]


def llm(server: Loopback) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url, api_key="k", model="m")


def nothing(_: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_template_in_front_of_a_model_marks_its_first_variable(
    server: Loopback, asynchronous: bool
) -> None:
    node = ENDS_IN_A_MESSAGE | llm(server) | nothing
    found = marks(server, node, asynchronous=asynchronous)
    assert found == [FixedMark(message=1, chars=len("Question: "))]


def test_a_template_that_a_node_fills_in_itself_marks_it_too(server: Loopback) -> None:
    def node(state: State) -> dict[str, Any]:
        llm(server).invoke(ENDS_IN_A_MESSAGE.format_messages(**state))
        return {}

    assert marks(server, node) == [FixedMark(message=1, chars=10)]


def test_a_message_that_is_all_variable_ends_the_one_before(server: Loopback) -> None:
    template = ChatPromptTemplate.from_messages(
        [("system", LITERAL), ("user", "{question}")]
    )
    found = marks(server, template | llm(server) | nothing)
    assert found == [FixedMark(message=0, chars=len("You plan {carefully}."))]


def test_a_mark_of_the_user_s_own_goes_first(server: Loopback) -> None:
    own = FixedMark(message=0, chars=3)

    def node(state: State) -> dict[str, Any]:
        messages = ENDS_IN_A_MESSAGE.format_messages(**state)
        with kvflow.fixed(own):
            llm(server).invoke(messages)
        return {}

    assert marks(server, node) == [own]


def test_a_call_with_other_messages_is_not_marked(server: Loopback) -> None:
    def node(state: State) -> dict[str, Any]:
        ENDS_IN_A_MESSAGE.format_messages(**state)
        llm(server).invoke("Something else.")
        return {}

    assert marks(server, node) == [None]


def test_outside_of_an_agent_nothing_is_remembered(server: Loopback) -> None:
    template = ChatPromptTemplate.from_messages([("system", "Apart."), ("user", "{q}")])
    messages = template.format_messages(q="gold?")

    def node(state: State) -> dict[str, Any]:
        llm(server).invoke(messages)
        return {}

    assert marks(server, node) == [None]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ([("system", "{role}"), ("user", "text")], None),
        ([MessagesPlaceholder("history"), ("user", "text")], None),
        ([("system", "a"), ("user", "b")], Beginning(("a", "b"), "")),
        ([SystemMessage("a {b}"), ("user", "{q}")], Beginning(("a {b}",), "")),
        ([("system", "a {b!r} c")], Beginning((), "a ")),
    ],
)
def test_what_stands_before_the_first_variable(
    template: list[Any], expected: Beginning | None
) -> None:
    assert beginning_of(ChatPromptTemplate.from_messages(template)) == expected


def test_a_partial_text_is_text_and_a_computed_one_a_variable() -> None:
    template = ChatPromptTemplate.from_messages(
        [("system", "You are {who}, at {now}.")]
    )
    given = template.partial(who="Ada", now=lambda: "noon")
    assert beginning_of(given) == Beginning((), "You are Ada, at ")


def test_a_template_in_another_language_ends_at_its_first_braces() -> None:
    template = ChatPromptTemplate.from_messages(
        [("system", "Plan for {{who}} now.")], template_format="mustache"
    )
    assert beginning_of(template) == Beginning((), "Plan for ")
