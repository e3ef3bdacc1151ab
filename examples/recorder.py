"""Measures LLM calls from outside a LangGraph program: it is passed as a callback.

`MeasuredChat` is LangChain's `ChatOpenAI` that asks SGLang where a call's prompt tokens
came from, and keeps the answer; `Recorder` notes times and collects it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import kvflow_sdk as kvflow

__all__ = ["Measured", "MeasuredChat", "Recorder", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One LLM call; `device`, `host` and `recomputed` are prompt tokens."""

    agent: str
    steps: Mapping[str, int]
    """Steps-to-execution of every agent when the call was made; empty if unknown."""
    ttft_s: float
    seconds: float
    device: int
    host: int
    recomputed: int
    output_ids: tuple[int, ...]
    text: str


class MeasuredChat(ChatOpenAI):
    """Keeps SGLang's extension fields, which LangChain drops."""

    def _convert_chunk_to_generation_chunk(
        self,
        chunk: dict[str, Any],
        default_chunk_class: type,
        base_generation_info: dict[str, Any] | None,
    ) -> ChatGenerationChunk | None:
        generation = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is not None and (extension := chunk.get("sglext")):
            generation.message.response_metadata["sglext"] = extension
        return generation


def chat(url: str, max_tokens: int) -> MeasuredChat:
    """A greedy chat model on the SGLang server at `url`, streaming for the TTFT."""
    return MeasuredChat(
        model="default",
        base_url=f"{url}/v1",
        api_key=SecretStr("none"),
        temperature=0,
        max_completion_tokens=max_tokens,
        streaming=True,
        stream_usage=True,
        max_retries=0,
        extra_body={
            "return_cached_tokens_details": True,
            "return_output_ids_in_sglext": True,
        },
    )


@dataclass(slots=True)
class _Open:
    agent: str
    steps: Mapping[str, int]
    start: float
    first: float | None = None


@dataclass(slots=True)
class Recorder(BaseCallbackHandler):
    """Collects the calls of one run, in the order in which they ended."""

    calls: list[Measured] = field(default_factory=list)
    _open: dict[UUID, _Open] = field(default_factory=dict)

    raise_error = True
    run_inline = True

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call = kvflow.current()
        steps = (call.run.snapshot().steps or {}) if call is not None else {}
        agent = (metadata or {})["langgraph_node"]
        self._open[run_id] = _Open(agent, steps, time.perf_counter())

    def on_llm_new_token(
        self, token: str | list[Any], *, run_id: UUID, **kwargs: Any
    ) -> None:
        call = self._open[run_id]
        if token and call.first is None:
            call.first = time.perf_counter()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        now = time.perf_counter()
        call = self._open.pop(run_id)
        message: Any = response.generations[0][0].message  # type: ignore[union-attr]
        extension = message.response_metadata.get("sglext") or {}
        cached = extension.get("cached_tokens_details") or {}
        device, host = cached.get("device", 0), cached.get("host", 0)
        self.calls.append(
            Measured(
                agent=call.agent,
                steps=call.steps,
                ttft_s=(call.first or now) - call.start,
                seconds=now - call.start,
                device=device,
                host=host,
                recomputed=message.usage_metadata["input_tokens"] - device - host,
                output_ids=tuple((extension.get("output_ids") or [[]])[0]),
                text=str(message.content),
            )
        )
