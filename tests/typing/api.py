"""Uses of the public API, for the type checker; never executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import kvflow_sdk as kvflow


@kvflow.agent("planner")
def plan(question: str, *, depth: int = 1) -> list[str]:
    return [question] * depth


@kvflow.agent("executor", fixed=kvflow.FixedMark(message=0, chars=812))
async def execute(task: str) -> str:
    return task


@kvflow.agent("writer")
def write() -> Iterator[str]:
    yield "word"


@kvflow.agent("writer")
async def awrite() -> AsyncIterator[str]:
    yield "word"


async def agents() -> None:
    assert_type(plan("why", depth=2), list[str])
    assert_type(await execute("task"), str)
    assert_type(write(), Iterator[str])
    async for word in awrite():
        assert_type(word, str)
    plan(7)  # type: ignore[arg-type]
    bound: Callable[[str], Any] = kvflow.bind(execute)
    await bound("task")


def blocks() -> None:
    graph = kvflow.AgentStepGraph.sequence(["planner", "executor"])
    prompt = kvflow.split("You plan.", "question", role="user", before=[])
    with kvflow.workflow(graph) as run, kvflow.step("planner") as call:
        assert_type(run, kvflow.Run | None)
        assert_type(call, kvflow.Call | None)
        with kvflow.fixed(prompt.fixed):
            assert_type(kvflow.current(), kvflow.Call | None)
    assert_type(prompt.messages, list[dict[str, Any]])


async def async_blocks() -> None:
    async with kvflow.workflow(), kvflow.step("planner"):
        pass


def clients() -> None:
    with kvflow.Client("http://localhost:30000", name="app") as client:
        assert_type(client.start_run(), kvflow.Run)
        assert_type(client.knows("http://localhost:30000/v1"), bool)
        assert_type(client.counters["steps.sent"], int)
    assert_type(kvflow.default_client(), kvflow.Client)
    openai = kvflow.OpenAI(base_url="http://localhost:30000/v1", api_key="EMPTY")
    assert_type(openai.with_options(timeout=3), kvflow.OpenAI)
    kvflow.AsyncOpenAI(base_ulr="http://localhost")  # type: ignore[call-arg]


def wrapping(app: tuple[int, str]) -> None:
    assert_type(kvflow.wrap(app, name="team"), tuple[int, str])
