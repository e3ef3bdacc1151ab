"""Models for the OpenAI Agents SDK that act on the text that they are answered with."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import agents
import openai
import pytest
from agents import ModelResponse, OpenAIChatCompletionsModel
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


@pytest.fixture(autouse=True, scope="package")
def _no_tracing() -> Iterator[None]:
    agents.set_tracing_disabled(True)
    yield
    agents.set_tracing_disabled(False)


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="1", type="message", role="assistant", status="completed", content=[part]
    )


def called(tool: str, arguments: str = "{}", number: int = 0) -> Any:
    return ResponseFunctionToolCall(
        id=f"f{number}",
        call_id=f"c{number}",
        type="function_call",
        name=tool,
        arguments=arguments,
    )


class ByWord(OpenAIChatCompletionsModel):
    """A model on a real server that hands over to whom its answer names."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls = itertools.count()

    async def get_response(self, *args: Any, **settings: Any) -> ModelResponse:
        response = await super().get_response(*args, **settings)
        response.output = self._acted(response.output, settings["handoffs"])
        return response

    async def stream_response(self, *args: Any, **settings: Any) -> AsyncIterator[Any]:
        async for event in super().stream_response(*args, **settings):
            if event.type == "response.completed":
                response = event.response
                # The SDK passes everything by position here: handoffs are the sixth.
                response.output = self._acted(response.output, args[5])
            yield event

    def _acted(self, output: Sequence[Any], handoffs: Sequence[Any]) -> list[Any]:
        texts = [
            part.text
            for item in output
            if isinstance(item, ResponseOutputMessage)
            for part in item.content
            if isinstance(part, ResponseOutputText)
        ]
        word = "".join(texts)
        targets = {handoff.agent_name: handoff.tool_name for handoff in handoffs}
        if word not in targets:
            return list(output)
        return [called(targets[word], number=next(self._calls))]


class Scripted(Model):
    """Answers from a list, and notes who asks."""

    def __init__(self, note: Any, *outputs: Sequence[Any]) -> None:
        self._note = note
        self._outputs = list(outputs)

    async def get_response(self, *args: Any, **settings: Any) -> ModelResponse:
        self._note()
        output = self._outputs.pop(0)
        return ModelResponse(
            output=list(output), usage=agents.Usage(), response_id=None
        )

    def stream_response(self, *args: Any, **settings: Any) -> Any:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=1
    ) as client:
        yield client
