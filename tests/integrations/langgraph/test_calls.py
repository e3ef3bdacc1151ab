"""LLM calls inside nodes carry the agent, to a real server that records headers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from langchain.chat_models import init_chat_model
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import Loopback, Seen
from kvflow_sdk import wire
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config

INPUT: dict[str, Any] = {"log": []}
CONTENT = '{"city": "Paris"}'


class Server(Loopback):
    """Answers chat completions; `headers` are those of each call, in order."""

    @property
    def calls(self) -> list[Seen]:
        return self.at("/chat/completions")

    @property
    def headers(self) -> list[dict[str, str]]:
        return [call.headers for call in self.calls]

    @property
    def updates(self) -> list[wire.StepUpdate | None]:
        """What each call said of KVFlow; None for nothing."""
        return [next(iter(call.updates), None) for call in self.calls]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(kvflow=False, text=CONTENT) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client for which `server` is configured as a KVFlow server."""
    with Client(server.url, config=Config()) as client:
        yield client


def chat(server: Server) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url, api_key="k", model="m", max_retries=2)


def plain(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="k")


def ask(llm: openai.OpenAI) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return llm.chat.completions.create(model="m", messages=messages)


@pytest.fixture
def app(recorder: Any, client: Client) -> Iterator[Any]:
    """Makes the wrapped graph a → b with `call` in node a, and runs it."""
    wrapped = []

    def run(call: Any, *, config: Any = None, using: Client | None = client) -> Any:
        builder = recorder.graph({"a": "b"}, actions={"a": call})
        wrapped.append(kvflow.wrap(builder.compile(), client=using))
        return wrapped[-1].invoke(INPUT, config)

    yield run
    for graph in wrapped:
        integration.unwrap(graph)


def expected(client: Client, update: wire.StepUpdate | None) -> None:
    """`update` is what a call of node a says."""
    assert update is not None
    assert update.client == client.id
    assert (update.agent, update.steps) == ("a", {"a": 0, "b": 1})
    assert update.seq == 2


def test_a_chat_model_is_tagged(app: Any, server: Server, client: Client) -> None:
    app(lambda: chat(server).invoke("hi"))
    (update,) = server.updates
    expected(client, update)


def test_a_streaming_chat_model_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    app(lambda: list(chat(server).stream("hi")))
    (update,) = server.updates
    expected(client, update)


def test_structured_output_is_tagged(app: Any, server: Server, client: Client) -> None:
    class Where(BaseModel):
        city: str

    model = chat(server).with_structured_output(Where, method="json_schema")
    app(lambda: model.invoke("hi"))
    (update,) = server.updates
    expected(client, update)


def test_a_model_that_init_chat_model_made_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    model = init_chat_model(
        "m", model_provider="openai", base_url=server.url, api_key="k"
    )
    app(lambda: model.invoke("hi"))
    (update,) = server.updates
    expected(client, update)


def test_a_model_with_tools_bound_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return "fine"

    server.text = "->weather"
    said = []
    app(lambda: said.append(chat(server).bind_tools([weather]).invoke("hi")))
    (call,) = server.calls
    assert call.body["tools"][0]["function"]["name"] == "weather"
    assert [tool["name"] for tool in said[0].tool_calls] == ["weather"]
    expected(client, server.updates[0])


def test_structured_output_by_a_tool_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    class Where(BaseModel):
        city: str = "nowhere"

    server.text = "->Where"
    model = chat(server).with_structured_output(Where, method="function_calling")
    app(lambda: model.invoke("hi"))
    expected(client, server.updates[0])


def test_an_async_stream_is_tagged(
    recorder: Any, server: Server, client: Client
) -> None:
    async def node(state: Any) -> dict[str, list[str]]:
        return {"log": [str(c.content) async for c in chat(server).astream("hi")]}

    builder = recorder.graph({"a": "b"})
    del builder.nodes["a"]
    builder.add_node("a", node)
    app = kvflow.wrap(builder.compile(), client=client)
    said = asyncio.run(app.ainvoke(INPUT))["log"]
    integration.unwrap(app)
    assert "".join(said[:-1]) == CONTENT
    expected(client, server.updates[0])


def test_calls_in_a_thread_pool_are_tagged_with_bind(
    app: Any, server: Server, client: Client
) -> None:
    def work(bound: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(bound, range(3)))

    app(lambda: work(kvflow.bind(lambda _: chat(server).invoke("hi"))))
    assert len(server.updates) == 3
    for update in server.updates:
        expected(client, update)


def test_calls_in_a_bare_thread_are_plain(app: Any, server: Server) -> None:
    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, plain(server)).result()

    app(work)
    assert server.updates == [None]


def test_a_model_made_before_wrapping_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    model = chat(server).bind(temperature=0)
    app(lambda: model.invoke("hi"))
    expected(client, server.updates[0])


def test_a_plain_openai_client_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    app(lambda: ask(plain(server)))
    expected(client, server.updates[0])


def test_every_attempt_of_a_call_is_tagged(
    app: Any, server: Server, client: Client
) -> None:
    server.status["/v1/chat/completions"] = [503]
    app(lambda: ask(plain(server)))
    first, second = server.updates
    expected(client, first)
    expected(client, second)


def test_a_kvflow_client_tags_once(app: Any, server: Server, client: Client) -> None:
    own = kvflow.OpenAI(base_url=server.url, api_key="k")
    app(lambda: ask(own))
    expected(client, server.updates[0])
    assert client.counters["calls.tagged"] == 1


def test_headers_of_the_user_are_kept(app: Any, server: Server, client: Client) -> None:
    llm = plain(server).with_options(default_headers={"x-mine": "1"})
    app(
        lambda: llm.chat.completions.create(
            model="m", messages=[], extra_headers={"x-call": "2"}
        )
    )
    (headers,) = server.headers
    assert (headers["x-mine"], headers["x-call"]) == ("1", "2")
    expected(client, server.updates[0])


def test_async_calls_in_parallel_nodes_carry_their_own_agent(
    recorder: Any, server: Server, client: Client
) -> None:
    async def node(state: Any) -> dict[str, list[str]]:
        await chat(server).ainvoke("hi")
        return {"log": []}

    builder = recorder.graph({"a": "bc"})
    for name in "bc":
        del builder.nodes[name]
        builder.add_node(name, node)
    app = kvflow.wrap(builder.compile(), client=client)
    asyncio.run(app.ainvoke(INPUT))
    integration.unwrap(app)
    assert sorted(u.agent for u in server.updates if u) == ["b", "c"]


def test_the_header_tells_no_more_than_the_call_does(
    app: Any, server: Server, client: Client
) -> None:
    # Nothing but the one header: bodies are refused by servers that do not know us.
    app(lambda: ask(plain(server)))
    tagged = server.headers[0]
    ask(plain(server))
    untagged = server.headers[1]
    assert set(tagged) - set(untagged) == {wire.HEADER}


def test_a_call_outside_of_a_run_is_not_tagged(
    recorder: Any, server: Server, client: Client
) -> None:
    app = kvflow.wrap(recorder.graph({"a": "b"}).compile(), client=client)
    chat(server).invoke("hi")
    ask(plain(server))
    integration.unwrap(app)
    assert server.updates == [None, None]


def test_a_server_that_is_not_known_as_kvflow_is_not_told(
    app: Any, server: Server
) -> None:
    with Client(config=Config()) as stranger:
        app(lambda: chat(server).invoke("hi"), using=stranger)
    assert server.updates == [None]


def test_the_wrapped_graph_of_the_default_client_uses_the_environment(
    app: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_sdk import client as module

    monkeypatch.setenv("KVFLOW_SERVER", server.url)
    monkeypatch.setattr(module, "_default", None)
    app(lambda: chat(server).invoke("hi"), using=None)
    default = module.default_client()
    expected(default, server.updates[0])
    default.close()


def test_after_unwrapping_nothing_is_tagged(
    recorder: Any, server: Server, client: Client
) -> None:
    builder = recorder.graph({"a": "b"})
    del builder.nodes["a"]
    builder.add_node("a", lambda state: {"log": [str(ask(plain(server)).id)]})
    del builder.nodes["b"]
    builder.add_node("b", lambda state: {"log": ["b"]})
    app = kvflow.wrap(builder.compile(), client=client)
    app.invoke(INPUT)
    assert integration.unwrap(app).invoke(INPUT)["log"] == ["chatcmpl-1", "b"]
    tagged, untagged = server.updates
    expected(client, tagged)
    assert untagged is None
