"""The stage: the server that a scenario's agents call.

It plays the model's part, so that a scenario goes the same way in every framework: an
agent that chooses is answered with its script, and agents that should execute at the
same time are answered together. What each call said of KVFlow is written down. With a
real KVFlow server behind it, every call and every step update goes there too, and what
that server then knows of the run is written down as well.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvflow_sdk import wire
from kvflow_sdk.wire import StepUpdate

from .loopback import GENERATE_PATH, PATIENCE_S, Loopback, Seen
from .scenarios import Scenario

__all__ = ["Heard", "Stage", "messages", "system_prompt"]

_NAME = re.compile(r"You are agent (\w+)\.")
_FILLER = " Read what is above, and answer with one word." * 4
_FINE = "fine"
"""What an agent is answered that has nothing to choose."""
REFUSED = "refused, as the scenario wants it"


def system_prompt(agent: str) -> str:
    """How `agent`'s prompt has to begin, word for word: the stage knows it by that."""
    return f"You are agent {agent}.{_FILLER}"


def messages(agent: str) -> list[dict[str, str]]:
    """The messages of a call of `agent`, for frameworks that leave them to the user."""
    return [
        {"role": "system", "content": system_prompt(agent)},
        {"role": "user", "content": "Go on."},
    ]


@dataclass(slots=True)
class Heard:
    """One call of an agent."""

    agent: str
    """By its prompt, so it is known of untagged calls too."""
    update: StepUpdate | None
    """What the call said; None when it is untagged."""
    body: Any
    """Without what KVFlow added to it."""
    known: dict[str, int] | None = field(default=None)
    """The steps of the run on the real server, while the call is not answered yet."""


class Stage(Loopback):
    """Plays `scenario` for `copies` programs at once; `behind` is the URL of a real
    KVFlow server, or None, and `key` its API key."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        copies: int = 1,
        behind: str | None = None,
        key: str | None = None,
    ) -> None:
        self.scenario = scenario
        self.heard: list[Heard] = []
        self.refused: Collection[str] = ()
        """Agents whose calls fail, with a status that no client tries again."""
        self.failing: dict[str, int] = {}
        """By agent: how many calls fail first, with a status that clients retry."""
        self.held: Collection[str] = ()
        """Agents that are answered only after `release`."""
        self._release = threading.Event()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._meetings = _meetings(scenario, copies)
        self._copies = copies
        self._behind: httpx.Client | None = None
        if behind is not None:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            self._behind = httpx.Client(
                base_url=behind, headers=headers, timeout=60, trust_env=False
            )
        super().__init__()

    def release(self) -> None:
        """Answer the calls that are held."""
        self._release.set()

    def wait_for(self, agent: str, count: int = 1) -> None:
        """Until `agent` has called so often."""

        def enough() -> bool:
            return sum(heard.agent == agent for heard in self.heard) >= count

        with self.changed:
            assert self.changed.wait_for(enough, PATIENCE_S), f"{agent} did not call"

    def complete(self, request: Seen) -> tuple[int, str]:
        agent = _caller(request.body)
        body = {k: value for k, value in request.body.items() if k != "kv_hints"}
        heard = Heard(agent, next(iter(request.updates), None), body)
        with self.changed:
            self.heard.append(heard)
            fails = self.failing.get(agent, 0) > 0
            if fails:
                self.failing[agent] -= 1
            self.changed.notify_all()
        if agent in self.held:
            self._release.wait(PATIENCE_S)
        if agent in self.refused or fails:
            return (503 if fails else 400), REFUSED
        if self._behind is not None:
            self._forward(request)
        self._meet(agent)
        if self._behind is not None and heard.update is not None:
            heard.known = self._state_of(heard.update)
        self._meet(agent)
        # Copies of a program that loops may be turns apart.
        run = heard.update.run if heard.update and self._copies > 1 else ""
        return 200, self._answer_to(agent, run)

    def steps(self, request: Seen) -> tuple[int, Any]:
        if self._behind is None:
            return super().steps(request)
        done = self._behind.post(wire.STEPS_PATH, json=request.body)
        return done.status_code, {}

    def client(self, client: str) -> dict[str, Any]:
        """What the real server behind the stage knows of the client with this id."""
        assert self._behind is not None, "no server behind this stage"
        reply = self._behind.get(wire.STATE_PATH).raise_for_status()
        known: dict[str, Any] = reply.json()["clients"]
        return known.get(wire.shown_client(client), {})  # type: ignore[no-any-return]

    def close(self) -> None:
        self.release()
        for meeting in self._meetings.values():
            meeting.abort()
        super().close()
        if self._behind is not None:
            self._behind.close()

    def _answer_to(self, agent: str, run: str) -> str:
        script = self.scenario.script.get(agent, ())
        with self.changed:
            turn = self._turns[run, agent]
            self._turns[run, agent] += 1
        return script[min(turn, len(script) - 1)] if script else _FINE

    def _meet(self, agent: str) -> None:
        meeting = self._meetings.get(agent)
        if meeting is not None:
            meeting.wait(agent)

    def _forward(self, request: Seen) -> None:
        assert self._behind is not None
        # Whatever the framework asks for, two tokens are enough here.
        if request.path == GENERATE_PATH:
            wanted = ("text", "kv_hints")
            own = {key: request.body[key] for key in wanted if key in request.body}
            own["sampling_params"] = {"max_new_tokens": 2, "temperature": 0}
            self._behind.post(GENERATE_PATH, json=own).raise_for_status()
            return
        body = {
            "model": "default",
            "messages": request.body["messages"],
            "max_tokens": 2,
            "temperature": 0,
        }
        value = request.headers.get(wire.HEADER)
        headers = {} if value is None else {wire.HEADER: value}
        self._behind.post(
            "/v1/chat/completions", json=body, headers=headers
        ).raise_for_status()

    def _state_of(self, update: StepUpdate) -> dict[str, int] | None:
        runs = self.client(update.client).get("runs", {})
        known: dict[str, int] | None = runs.get(update.run)
        return known


class _Meeting:
    """Agents that are answered together, moment by moment."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._turn = 0
        self._here = 0
        self._aborted = False
        self._changed = threading.Condition()

    def wait(self, agent: str) -> None:
        with self._changed:
            mine = self._turn
            if mine >= len(self._sizes) or self._aborted:
                return
            self._here += 1
            if self._here == self._sizes[mine]:
                self._turn, self._here = mine + 1, 0
                self._changed.notify_all()
                return
            done = self._changed.wait_for(
                lambda: self._turn > mine or self._aborted, PATIENCE_S
            )
        assert done, f"agent {agent} waited in vain for those it runs in parallel with"

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()


def _meetings(scenario: Scenario, copies: int) -> dict[str, _Meeting]:
    """By agent; every meeting is held twice, around a look at the real server."""
    groups: dict[frozenset[str], list[int]] = {}
    for moment in scenario.moments:
        if len(moment.agents) > 1:
            sizes = groups.setdefault(frozenset(moment.agents), [])
            sizes += [len(moment.agents) * copies] * 2
    found: dict[str, _Meeting] = {}
    for agents, sizes in groups.items():
        meeting = _Meeting(sizes)
        for agent in agents:
            assert agent not in found, f"{agent} cannot be in two kinds of meetings"
            found[agent] = meeting
    return found


def _caller(body: Any) -> str:
    for message in body.get("messages", ({"content": body.get("text")},)):
        content = message.get("content")
        texts = content if isinstance(content, list) else [{"text": content}]
        for part in texts:
            if match := _NAME.search(part.get("text") or ""):
                return match[1]
    return ""
