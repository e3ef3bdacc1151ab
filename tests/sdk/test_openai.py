"""`kvflow.OpenAI` and `AsyncOpenAI`: one header more inside an agent, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest

import kvflow_sdk as kvflow
from kvflow_sdk import wire

if TYPE_CHECKING:
    from conftest import Loopback

QUESTION: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "why?"}],
}
SETTINGS: dict[str, Any] = {"api_key": "sk-1", "max_retries": 0}

Use = Callable[[Any], Any]
Ask = Callable[[Use, str], Any]


def ask_sync(use: Use, url: str, **settings: Any) -> Any:
    with kvflow.OpenAI(base_url=url, **{**SETTINGS, **settings}) as client:
        return use(client)


def ask_async(use: Use, url: str, **settings: Any) -> Any:
    async def main() -> Any:
        everything = {**SETTINGS, **settings}
        async with kvflow.AsyncOpenAI(base_url=url, **everything) as client:
            return await use(client)

    return asyncio.run(main())


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(**QUESTION, **options)


def told(server: Loopback, path: str = "/completions") -> list[str | None]:
    """Who the calls that arrived said they were."""
    calls = [request.updates for request in server.at(path)]
    return [updates[0].agent if updates else None for updates in calls]


def test_call_in_an_agent_says_who_calls_and_what_is_next(
    server: Loopback, ask: Ask
) -> None:
    graph = kvflow.AgentStepGraph.sequence(["planner", "executor"])
    mark = kvflow.FixedMark(message=0, chars=4)
    with kvflow.workflow(graph) as run, kvflow.step("planner", fixed=mark):
        ask(chat, server.url)
    (request,) = server.at("/completions")
    (update,) = request.updates
    assert run is not None
    assert (update.run, update.agent, update.fixed) == (run.id, "planner", mark)
    assert update.steps == {"planner": 0, "executor": 1}


def test_call_outside_of_an_agent_is_plain(server: Loopback, ask: Ask) -> None:
    answer = ask(chat, server.url)
    with kvflow.workflow():
        ask(chat, server.url)
    assert answer.choices[0].message.content == "forty-two"
    assert told(server) == [None, None]


USES: dict[str, Use] = {
    "stream": lambda client: chat(client, stream=True),
    "raw": lambda client: client.chat.completions.with_raw_response.create(**QUESTION),
    "options": lambda client: chat(client.with_options(timeout=9)),
    "copy": lambda client: chat(client.copy(max_retries=1)),
    "completions": lambda client: client.completions.create(model="m", prompt="why?"),
    "parse": lambda client: client.chat.completions.parse(**QUESTION),
}


@pytest.mark.parametrize("way", USES)
def test_every_way_to_call_a_model_is_told(
    server: Loopback, ask: Ask, way: str
) -> None:
    with kvflow.step("planner"):
        ask(USES[way], server.url)
    assert told(server) == ["planner"]


def test_stream_is_read_as_usual(server: Loopback) -> None:
    def words(client: Any) -> list[str | None]:
        return [part.choices[0].delta.content for part in chat(client, stream=True)]

    with kvflow.step("planner"):
        assert ask_sync(words, server.url) == ["forty-two"]


def test_call_that_runs_no_model_is_plain(server: Loopback, ask: Ask) -> None:
    with kvflow.step("planner"), pytest.raises(openai.NotFoundError):
        ask(lambda client: client.embeddings.create(model="m", input="x"), server.url)
    assert told(server, "/embeddings") == [None]


def test_request_is_otherwise_that_of_the_plain_client(server: Loopback) -> None:
    with openai.OpenAI(base_url=server.url, **SETTINGS) as plain:
        chat(plain, extra_body={"top_k": 3}, extra_headers={"x-mine": "1"})
    with kvflow.step("planner"):
        ask_sync(
            lambda client: chat(
                client, extra_body={"top_k": 3}, extra_headers={"x-mine": "1"}
            ),
            server.url,
        )
    theirs, ours = server.at("/completions")
    assert ours.headers.pop(wire.HEADER)
    assert ours.headers == theirs.headers
    assert ours.body == theirs.body


def test_header_of_the_user_is_left_alone(server: Loopback, ask: Ask) -> None:
    theirs = {"X-Request-Id-KVFlow": "mine"}
    with kvflow.step("planner"):
        ask(lambda client: chat(client, extra_headers=theirs), server.url)
    (request,) = server.at("/completions")
    assert request.headers[wire.HEADER] == "mine"


def test_repeated_call_is_told_again(server: Loopback) -> None:
    server.status["/v1/chat/completions"] = [500]
    with kvflow.step("planner"):
        ask_sync(chat, server.url, max_retries=1)
    assert told(server) == ["planner", "planner"]


def test_parallel_agents_are_told_apart(server: Loopback) -> None:
    @kvflow.agent("a")
    async def first(client: kvflow.AsyncOpenAI) -> None:
        await chat(client)

    @kvflow.agent("b")
    async def second(client: kvflow.AsyncOpenAI) -> None:
        await chat(client)

    async def both(client: kvflow.AsyncOpenAI) -> None:
        await asyncio.gather(*(f(client) for f in (first, second) * 5))

    with kvflow.workflow():
        ask_async(both, server.url)
    assert sorted(name or "" for name in told(server)) == ["a"] * 5 + ["b"] * 5


def test_bound_threads_are_told(server: Loopback) -> None:
    def both(client: kvflow.OpenAI) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(kvflow.bind(chat), [client] * 4))

    with kvflow.step("planner"):
        ask_sync(both, server.url)
    assert told(server) == ["planner"] * 4


def test_nodes_reach_the_server_before_the_first_call(server: Loopback) -> None:
    graph = kvflow.AgentStepGraph.sequence(["planner", "executor"])
    with kvflow.OpenAI(base_url=server.url, **SETTINGS), kvflow.workflow(graph):
        (request,) = server.wait(wire.STEPS_PATH)
    assert request.updates[0].steps == {"planner": 1, "executor": 2}
    assert request.headers["authorization"] == "Bearer sk-1"


def test_configured_key_is_used_for_the_steps(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_sdk import client

    config = kvflow.Config(server=server.url, api_key="sk-2")
    with kvflow.Client(config=config) as ours:
        monkeypatch.setattr(client, "_default", ours)
        with kvflow.step("planner"):
            ask_sync(chat, server.url)
        (request, *_) = server.wait(wire.STEPS_PATH)
    assert request.headers["authorization"] == "Bearer sk-2"


def test_run_of_an_explicit_client_learns_the_server(server: Loopback) -> None:
    with kvflow.Client(name="mine") as ours:
        with kvflow.workflow(client=ours) as run, kvflow.step("planner"):
            ask_sync(chat, server.url)
        server.wait(wire.STEPS_PATH)
        assert ours.flush(10)
    assert run is not None
    assert {u.run for r in server.at(wire.STEPS_PATH) for u in r.updates} == {run.id}
    assert told(server) == ["planner"]


def test_openai_itself_is_not_taken_for_kvflow(
    default_client: kvflow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with kvflow.OpenAI(**SETTINGS) as client, client.with_options(timeout=1):
        assert "servers=[]" in repr(default_client)


def test_server_named_in_the_environment_is_used(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with kvflow.OpenAI(**SETTINGS) as client, kvflow.step("planner"):
        chat(client)
    assert told(server) == ["planner"]


def test_switched_off_it_is_a_plain_client(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvflow_sdk import client

    off = kvflow.Client(config=kvflow.Config(disable=True))
    monkeypatch.setattr(client, "_default", off)
    with kvflow.step("planner"):
        ask_sync(chat, server.url)
    assert [r.path for r in server.seen] == ["/v1/chat/completions"]
    assert told(server) == [None]
