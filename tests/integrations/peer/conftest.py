"""Members that note when they are called, and the steps at that moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.peer import PEER, Review, Task


class Team:
    """A team whose reviewer gives `scores` one after another."""

    def __init__(self, scores: Sequence[int] = (100,), **settings: Any) -> None:
        self._lock = threading.Lock()
        self._scores = list(scores)
        self.seen: list[tuple[str, dict[str, int]]] = []
        self.tasks: list[Task] = []
        self.calls: list[kvflow.Call | None] = []
        self.peer = PEER(self.plan, self.execute, self.express, self.review, **settings)

    @property
    def order(self) -> str:
        """The initials of who was called."""
        initials = {"planner": "P", "executor": "E", "expresser": "X", "reviewer": "R"}
        names = (name.rpartition("|")[2] for name, _ in self.seen)
        return "".join(initials[name] for name in names)

    @property
    def steps(self) -> dict[str, dict[str, int]]:
        """By agent: the steps while it executed for the last time."""
        return dict(self.seen)

    def plan(self, task: Task) -> list[str]:
        self._note(task)
        return ["first", "second"]

    def execute(self, task: Task) -> str:
        self._note(task)
        return f"{task.subtask} settled"

    def express(self, task: Task) -> str:
        self._note(task)
        return f"text {task.round}"

    def review(self, task: Task) -> Review:
        self._note(task)
        return Review(self._scores.pop(0), f"advice {task.round}")

    def _note(self, task: Task) -> None:
        call = kvflow.current()
        with self._lock:
            self.calls.append(call)
            self.tasks.append(task)
            if call is not None:
                self.seen.append((call.agent, dict(call.run.snapshot().steps or {})))


@pytest.fixture
def team_of() -> type[Team]:
    """Makes a team."""
    return Team


@pytest.fixture(autouse=True)
def default_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[kvflow.Client]:
    from kvflow_sdk import client

    ours = kvflow.Client(config=kvflow.Config())
    monkeypatch.setattr(client, "_default", ours)
    yield ours
    ours.close()
