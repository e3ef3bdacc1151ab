"""Recorded LLM requests, and their text in the order in which a model reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import HEADER, from_header

__all__ = ["Part", "PromptText", "RecordedRequest", "read_requests"]

_PROMPTS = {"messages", "prompt", "text", "input"}


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of a prompt: the tools, or a message."""

    label: str
    """``tools``, ``response_format``, ``message 0 (system)``, ``prompt``."""
    start: int
    """Its first character in the prompt's text."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A request's prompt as one text.

    Tools and the response schema come first: that is where chat templates put them.
    """

    text: str
    parts: tuple[Part, ...]

    def place(self, at: int) -> tuple[str, int]:
        """The part in which character `at` stands, and its offset in that part."""
        part = self.parts[0]
        for candidate in self.parts:
            if candidate.start <= at:
                part = candidate
        return part.label, at - part.start


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The body of one LLM call, and who made it if that is known."""

    body: Mapping[str, Any]
    agent: str | None = None

    def prompt(self) -> PromptText:
        """Its text; tools are written as they were sent, keys in their order."""
        parts: list[Part] = []
        pieces: list[str] = []
        length = 0
        for label, text in _pieces(self.body):
            parts.append(Part(label, length))
            pieces.append(text)
            length += len(text)
        return PromptText("".join(pieces), tuple(parts) or (Part("prompt", 0),))


def read_requests(lines: Iterable[str]) -> Iterator[RecordedRequest]:
    """Parse JSON lines; blank ones are passed over.

    A line is a request's body (``{"messages": [...]}``), or an object with ``body``
    (and ``agent`` or ``headers``), as `kvflow lint` records them and as files of
    OpenAI's batch API have them. Raises `ValueError` with the number of the line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: not JSON ({error})") from error
        body = entry.get("body", entry) if isinstance(entry, dict) else None
        if not isinstance(body, dict) or not _PROMPTS & set(body):
            raise ValueError(
                f"line {number}: no request; wanted an object with messages, prompt, "
                f"text or input, or one that has such an object under body"
            )
        yield RecordedRequest(body, _agent(entry))


def _agent(entry: Mapping[str, Any]) -> str | None:
    agent = entry.get("agent")
    if isinstance(agent, str):
        return agent
    headers = entry.get("headers")
    value = headers.get(HEADER) if isinstance(headers, dict) else None
    if not isinstance(value, str):
        return None
    try:
        return next((u.agent for u in from_header(value) if u.agent is not None), None)
    except WireError:
        return None


def _pieces(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if tools := body.get("tools") or body.get("functions"):
        yield "tools", "".join(json.dumps(tool) + "\n" for tool in tools)
    if schema := body.get("response_format"):
        yield "response_format", json.dumps(schema) + "\n"
    for key in ("system", "instructions"):
        if isinstance(body.get(key), str):
            yield key, body[key] + "\n"
    for index, message in enumerate(body.get("messages") or ()):
        role = str(message.get("role", "?"))
        yield f"message {index} ({role})", f"{_text(message)}\n"
    for key in ("prompt", "text", "input"):
        if isinstance(body.get(key), str):
            yield key, body[key]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    calls = message.get("tool_calls")
    return (content if isinstance(content, str) else "") + (
        json.dumps(calls) if calls else ""
    )
