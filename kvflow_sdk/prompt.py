"""Saying where the fixed part of a prompt ends.

The server learns it by itself from an agent's calls. A mark is for those who know
better, or want it right from the first call on; it never changes the text that the
model sees. ::

    prompt = kvflow.split(INSTRUCTIONS, question, role="user")
    with kvflow.fixed(prompt.fixed):
        client.chat.completions.create(model=model, messages=prompt.messages)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .wire import FixedMark

__all__ = ["Prompt", "split"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages for an OpenAI client, and where their fixed part ends."""

    messages: list[dict[str, Any]]
    fixed: FixedMark


def split(
    fixed_text: str,
    *rest: str,
    role: str = "user",
    before: Iterable[Mapping[str, Any]] = (),
) -> Prompt:
    """A message that begins with `fixed_text` and goes on with `rest`.

    All texts are joined as they are. `before`: the messages in front of it, which
    have to be the same in every call of the agent as well.
    """
    messages = [dict(message) for message in before]
    messages.append({"role": role, "content": "".join((fixed_text, *rest))})
    mark = FixedMark(message=len(messages) - 1, chars=len(fixed_text))
    return Prompt(messages, mark)
