"""The members of PEER: what they are given, what they say, how it is understood.

A member is a `Role`, which is a prompt for the model, or any function of a `Task`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from string import Formatter
from typing import Any, Final

from kvflow_sdk.prompt import Prompt, split

__all__ = ["ROLES", "Review", "Role", "Task", "read_plan", "read_review"]

ROLES: Final = ("planner", "executor", "expresser", "reviewer")

_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,3}[.):])\s*")
_SCORE = re.compile(r"score\D{0,12}(\d{1,3})", re.IGNORECASE)
_NUMBER = re.compile(r"\b(\d{1,3})\b")


@dataclass(frozen=True, slots=True)
class Task:
    """What is known when a member is called; all of it grows over one run."""

    question: str
    subtask: str = ""
    """For the executor: its part of the plan."""
    plan: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """What the executors said, in the order of the plan."""
    draft: str = ""
    advice: str = ""
    """What the reviewer said of the draft before; empty in the first round."""
    round: int = 1

    def values(self) -> dict[str, str]:
        """By field: its text in a prompt, lists one entry a line."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            found[field.name] = (
                "\n".join(value) if isinstance(value, tuple) else str(value)
            )
        return found


@dataclass(frozen=True, slots=True)
class Review:
    """The reviewer's verdict."""

    score: int
    """0 to 100."""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Role:
    """A member as a prompt: `instructions` never change, `request` is filled in.

    ``request="Question: {question}"`` may use every field of `Task`. The two make one
    user message, with `system` in front of it if there is any; the fixed prompt ends
    where `instructions` do. Raises `ValueError` for a field that does not exist.
    """

    instructions: str
    request: str = "{question}"
    system: str = ""

    def __post_init__(self) -> None:
        known = [field.name for field in fields(Task)]
        for _, name, _, _ in Formatter().parse(self.request):
            if name is not None and name not in known:
                raise ValueError(
                    f"request: {{{name}}} is no field; there are {', '.join(known)}"
                )

    def prompt(self, task: Task) -> Prompt:
        """The messages for one call, and where their fixed part ends."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        request = self.request.format_map(task.values())
        return split(self.instructions, request, before=system)


def read_plan(said: Any, limit: int) -> tuple[str, ...]:
    """The first `limit` sub-tasks in what a planner said: its lines, or its items."""
    lines: Iterable[Any] = said.splitlines() if isinstance(said, str) else said
    parts = (_BULLET.sub("", str(line)).strip() for line in lines)
    return tuple(part for part in parts if part)[:limit]


def read_review(said: Any) -> Review:
    """The verdict in what a reviewer said.

    In a text it is the number after the word "score", else the first number up to 100;
    a text without one is no approval, so its score is 0.
    """
    if isinstance(said, Review):
        return said
    if not isinstance(said, str):
        return Review(int(said))
    numbers = (int(n) for n in (*_SCORE.findall(said), *_NUMBER.findall(said)))
    score = next((number for number in numbers if number <= 100), 0)
    return Review(score, said.strip())
