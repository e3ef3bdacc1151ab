"""The server dies in mid-workflow: the program sees what a plain client would.

The last file, because the next test that needs the server starts it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import openai
import pytest

import kvflow_sdk as kvflow

if TYPE_CHECKING:
    from conftest import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

BODY = {
    "model": "any",
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 400,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


@dataclass
class Wreck:
    """What a plain client and KVFlow's saw, in this order."""

    first: list[str] = field(default_factory=list)
    """The answers while the server was alive."""
    in_mid_stream: list[BaseException] = field(default_factory=list)
    afterwards: list[BaseException] = field(default_factory=list)
    done: bool = False
    """The workflow came to its own end."""


def failure(action: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
        action()
    return caught.value


def create(llm: openai.OpenAI, **settings: Any) -> Any:
    return llm.chat.completions.create(**(BODY | settings))


def kill_in_mid_workflow(server: Server, ours: kvflow.Client) -> Wreck:
    wreck = Wreck()
    settings: dict[str, Any] = {
        "base_url": f"{server.url}/v1",
        "api_key": server.key,
        "max_retries": 0,
    }
    with (
        openai.OpenAI(**settings) as plain,
        kvflow.OpenAI(**settings) as tagged,
        kvflow.workflow(
            kvflow.AgentStepGraph.sequence(["planner", "writer"]), client=ours
        ),
    ):
        with kvflow.step("planner"):
            answers = [create(llm, max_tokens=4) for llm in (plain, tagged)]
            wreck.first = [answer.choices[0].message.content for answer in answers]
            streams = [create(llm, stream=True) for llm in (plain, tagged)]
            for stream in streams:
                next(stream)
            server.process.kill()
            for stream in streams:
                wreck.in_mid_stream.append(failure(lambda s=stream: list(s)))
                stream.close()
        with kvflow.step("writer"):
            for llm in (plain, tagged):
                wreck.afterwards.append(failure(lambda m=llm: create(m)))
    wreck.done = True
    return wreck


@pytest.fixture(scope="module")
def wreck(fleet: Any) -> Wreck:
    server = fleet["kvflow"]
    config = kvflow.Config(api_key=server.key, timeout=2, flush=0.5)
    with kvflow.Client(server.url, config=config) as ours:
        return kill_in_mid_workflow(server, ours)


def looks(error: BaseException) -> tuple[object, ...]:
    """What a program can tell an exception by."""
    return type(error), str(error), type(error.__cause__), str(error.__cause__)


def test_before_that_both_were_answered_alike(wreck: Wreck) -> None:
    plain, tagged = wreck.first
    assert plain == tagged


def test_a_stream_breaks_off_as_that_of_a_plain_client(wreck: Wreck) -> None:
    plain, tagged = wreck.in_mid_stream
    assert looks(tagged) == looks(plain)


def test_the_next_call_fails_as_that_of_a_plain_client(wreck: Wreck) -> None:
    plain, tagged = wreck.afterwards
    assert isinstance(plain, openai.APIConnectionError)
    assert looks(tagged) == looks(plain)


def test_the_workflow_comes_to_its_end(wreck: Wreck) -> None:
    assert wreck.done
